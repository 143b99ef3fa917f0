"""A federation of real nodes on this machine, and the simulator's prediction of it: ``make twin``.

    python -m lab.rack.twin [--seconds 600]

Eight SuperNodes train on digits under FedBuff. They wait for known, unequal seconds in every order,
and each has a link of known delay and bandwidth. The device file is fitted to the first half of the
log. The run is then simulated with it and compared with the second half: updates a second, their
staleness and the share of every node. The seconds to a target are those of the whole run, to the
first evaluation at which the mean of the last five is there.

What a version learns depends on the sequence of arrivals, and a few hundredths of a second change
it. So the run is simulated several times: with the fitted seconds, and with seconds drawn from
their intervals. The prediction is the mean of these simulations.

Neither the waits nor the links are told to the fit.
"""

import argparse
import json
import math
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pandas as pd

from fl_app import Result
from fl_app.cli import compose
from fl_app.core.errors import RunError
from fl_app.runner.cell import run_cell
from lab.demo import Federation
from lab.faults.field import APP
from lab.rack.fit import main as fit

# Of every node: seconds that it waits in an order, delay of its link each way, bytes per second.
NODES = (
    *((1.0, 0.0, 1e6), (2.0, 0.02, 1e6), (3.0, 0.05, 5e5), (4.0, 0.0, 2e5)),
    *((6.0, 0.1, 1e5), (8.0, 0.05, 1e5), (10.0, 0.1, 5e4), (14.0, 0.2, 5e4)),
)
TARGETS = {each: f"seconds to {each:.0%}, whole run" for each in (0.85, 0.9)}
SMOOTHED = 5  # evaluations whose mean has to reach one
SIMULATIONS = 5
TWO_SIDED = NormalDist().inv_cdf(0.975)
ONLINE = 240.0  # seconds that starting and ending may take
RUN = (
    *("algorithm=fedbuff", "task=digits", "partition=dirichlet", f"num_clients={len(NODES)}"),
    *("num_versions=null", "eval_every=1", "seed=0", f"experiment.report_accuracy={max(TARGETS)}"),
    *(f"algorithm.schedule.concurrency={len(NODES)}", "algorithm.schedule.buffer_size=4"),
)


def course(run: Path, since: float, until: float) -> "pd.Series[float]":
    """What happened in a run between two seconds, by names; of its whole, seconds to `TARGETS`."""
    events = Result(run).events
    part = events[(events.t >= since) & (events.t < until)]
    who = part.client[part.kind == "arrival"]
    shares = who.value_counts(normalize=True)
    tested = events[events.kind == "evaluate"].dropna(subset="accuracy")
    smoothed = tested.accuracy.rolling(SMOOTHED).mean()
    return pd.Series(
        {
            "updates a second": len(who) / (until - since),
            "mean staleness": part.age[part.kind == "aggregate"].explode().astype(float).mean(),
            **{f"share of node {i}": shares.get(i, 0.0) for i in range(len(NODES))},
            **{name: tested.t[smoothed >= target].min() for target, name in TARGETS.items()},
        }
    )


def record(folder: Path, seconds: float) -> None:
    """Run the federation for so many seconds.

    Raises:
        RunError: a process or the run failed.
    """
    limit = seconds + ONLINE
    with Federation(folder, len(NODES), limit, app=APP, linked=True) as federation:
        for link, (_, delay, speed) in zip(federation.links, NODES, strict=True):
            for way in (link.up, link.down):
                way.delay, way.bytes_per_second = delay, speed
        federation.start([f"wait={wait}" for wait, *_ in NODES])
        words = [*RUN, "runtime=deployment", f"max_seconds={seconds}"]
        federation.run(folder / "run", words)


def drawn(table: dict[str, Any], number: int) -> dict[str, Any]:
    """A device file like `table` with seconds drawn from their intervals; itself for number 0."""
    rng = random.Random(number)
    kinds = {}
    for name, kind in table["kinds"].items():
        low, high = kind["interval"]
        deviation = (high - low) / 2 / TWO_SIDED if number else 0.0
        kinds[name] = kind | {"seconds": max(rng.gauss(kind["seconds"], deviation), 1e-3)}
    return table | {"kinds": kinds}


def simulate(folder: Path, table: dict[str, Any], seconds: float) -> list[Path]:
    """Simulate the run with the fitted table and with draws from it; the runs' folders."""
    runs = []
    for number in range(SIMULATIONS):
        here = folder / f"predicted-{number}"
        path = folder / f"drawn-{number}.json"
        path.write_text(json.dumps(drawn(table, number)))
        words = [*RUN, "devices=boards", f"devices.table={path}", f"max_seconds={seconds}"]
        run_cell(compose([*words, "runtime.workers=0"]), here, label=here.name)
        runs.append(here)
    return runs


def show(measured: "pd.Series[float]", simulations: Sequence["pd.Series[float]"]) -> None:
    """Print the comparison; of a target that a simulation does not reach, without a prediction."""
    table = pd.DataFrame(simulations)
    predicted = table.mean(skipna=False)
    print("| second half | measured | predicted | error |\n|---|---|---|---|")
    for name, real in measured.items():
        error = predicted[name] / real - 1 if real else math.nan
        print(f"| {name} | {real:.4g} | {predicted[name]:.4g} | {error:+.1%} |")
    for name in TARGETS.values():
        print(f"{name}, of each simulation: {', '.join(f'{each:.1f}' for each in table[name])}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 if the federation failed, 2 if nothing was fitted."""
    parser = argparse.ArgumentParser(prog="python -m lab.rack.twin")
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the run (600)")
    given = parser.parse_args(arguments)
    if not 0 < given.seconds < math.inf:
        parser.error(f"--seconds {given.seconds:g} must be a number > 0: nothing would be recorded")
    seconds, half = given.seconds, given.seconds / 2
    folder = Path(f"outputs/twin-{time.strftime('%Y-%m-%d-%H-%M-%S')}").resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        record(folder, seconds)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    table = folder / "fitted.json"
    run = folder / "run"
    if fit([str(run / "events.jsonl"), "--until", str(half), "--output", str(table)]):
        return 2
    fitted = json.loads(table.read_text())
    for name, values in fitted["kinds"].items():
        print(f"{name}: {values['seconds']:.2f} s, interval {values['interval']}")
    simulations = [course(each, half, seconds) for each in simulate(folder, fitted, seconds)]
    show(course(run, half, seconds), simulations)
    print(f"Files: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
