"""How much a cycle of Overlap-FedAvg contracts, beside accuracies over rate and momentum.

    python -m lab.rack.contraction FOLDER

FOLDER is of the sweep that conf/experiment/overlap.yaml has, with hydra.sweep.dir=FOLDER.

A cycle moves the model by D(w), the mean displacement of the clients' local training. Near a
minimum w*, D(w) is about -C (w - w*). Overlap-FedAvg applies a displacement one cycle late, with
momentum beta: in a direction with the eigenvalue c of C,

    x_{t+1} - x_t = beta (x_t - x_{t-1}) - c x_{t-1},

which has the characteristic polynomial z^2 - (1 + beta) z + beta + c. Both roots lie within the
unit circle if and only if c < 1 - beta. FedAvg with the same momentum, where nothing is late, is
stable up to c < 2 (1 + beta).

The largest c is found by power iteration with differences of D, at a model that FedAvg has trained.
Where local training itself is not stable, small differences grow in it. Then c lies outside of
[0, 1], and says nothing about momentum.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

from fl_app.client import LocalTrainer
from fl_app.client.build import build_task, build_trainer
from fl_app.client.initial import build_model
from fl_app.core.types import Order, Vector
from fl_app.report.cells import Cell, read_run
from fl_app.report.figures import data, save

CYCLES, ITERATIONS = 5, 12
LENGTH = 1e-2  # of a difference; the models have norms of about 10
RATE, MOMENTUM = "algorithm.client.local_lr", "algorithm.strategy.momentum"


def cycle(trainer: LocalTrainer, num_clients: int) -> Callable[[Vector], Vector]:
    """D: the mean displacement by examples, with the same batches in every call."""

    def displacement(model: Vector) -> Vector:
        total = np.zeros(model.shape, np.float64)
        examples = 0
        for client in range(num_clients):
            upload = trainer.train(Order(client, client, 0, 0, model, {"local_epochs": 1}, 0.0))
            total += upload.num_examples * (upload.vector.astype(np.float64) - model)
            examples += upload.num_examples
        return (total / examples).astype(np.float32)

    return displacement


def contraction(displacement: Callable[[Vector], Vector], model: Vector, seed: int = 0) -> float:
    """The largest eigenvalue of -dD/dw, by power iteration.

    Args:
        displacement: D.
        model: where the derivative is taken, shape ``(d,)``.
        seed: of the first direction.
    """
    base = displacement(model)
    direction = np.random.default_rng(seed).standard_normal(model.size).astype(np.float32)
    value = 0.0
    for _ in range(ITERATIONS):
        direction /= np.linalg.norm(direction)
        change = (base - displacement(model + LENGTH * direction)) / LENGTH
        value = float(change @ direction)
        direction = change
    return value


def contractions(cells: Sequence[Cell]) -> dict[float, float]:
    """The contraction for every local rate of a sweep, after `CYCLES` of FedAvg."""
    result: dict[float, float] = {}
    for cell in cells:
        config, rate = cell.settings, float(cell.get(RATE))
        config.algorithm.client.upload = "model"
        if rate in result:
            continue
        task = build_task(config)
        displacement = cycle(build_trainer(config, task), int(config.num_clients))
        model = build_model(task, int(config.seed)).read()
        for _ in range(CYCLES):
            model = model + displacement(model)
        result[rate] = contraction(displacement, model)
        print(f"rate {rate:g}: contraction {result[rate]:.3g}", flush=True)
    return dict(sorted(result.items()))


def draw(path: Path, sweep: Sequence[Cell], by_rate: dict[float, float]) -> None:
    """The accuracies over rate and momentum, with the bound 1 - c of a rate as a red line.

    A rate whose contraction lies outside of [0, 1] has no line.
    """
    cells = pd.DataFrame(
        [(c.get(RATE), c.get(MOMENTUM), c.summary["last10_accuracy"]) for c in sweep],
        columns=["rate", "momentum", "accuracy"],
    )
    momenta = sorted(cells.momentum.unique())
    bounds = pd.DataFrame(
        [
            (column, column + 1, np.interp(1 - contracts, momenta, range(len(momenta))) + 0.5)
            for column, contracts in enumerate(by_rate.values())
            if 0 <= contracts <= 1
        ],
        columns=["left", "right", "height"],
    )
    across, up = (alt.Scale(domain=[0, n], nice=False) for n in (len(by_rate), len(momenta)))
    lines = alt.Chart(data(bounds)).mark_rule(color="red", strokeWidth=2)
    lines = lines.encode(
        x=alt.X("left:Q", scale=across, axis=None),
        x2="right:Q",
        y=alt.Y("height:Q", scale=up, axis=None),
    )
    places = alt.Chart(data(cells)).encode(
        x=alt.X("rate:O", title="local rate"), y=alt.Y("momentum:O", sort="descending")
    )
    colour = alt.Color("mean(accuracy):Q", legend=None).scale(scheme="yellowgreen")
    squares = places.mark_rect().encode(color=colour)
    texts = places.mark_text().encode(text=alt.Text("mean(accuracy):Q", format=".0%"))
    chart = alt.layer(alt.layer(squares, texts), lines).properties(width=400, height=400)
    save(chart.resolve_scale(x="independent", y="independent"), path)


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, measure, print a table and draw."""
    parser = argparse.ArgumentParser(prog="python -m lab.rack.contraction")
    parser.add_argument("folder", type=Path, help="of a sweep over rate and momentum")
    args = parser.parse_args(words)
    try:
        cells = read_run(args.folder)
    except ValueError as error:
        parser.error(str(error))
    by_rate = contractions(cells)
    print("\n| local rate | contraction c of a cycle | stable below the momentum 1 - c |")
    print("|---|---|---|")
    for rate, value in by_rate.items():
        bound = f"{1 - value:.2f}" if 0 <= value <= 1 else "-"
        print(f"| {rate:g} | {value:.3g} | {bound} |")
    figure = args.folder / "stability.png"
    draw(figure, cells, by_rate)
    print(f"figure: {figure}", file=sys.stderr)


if __name__ == "__main__":
    main()
