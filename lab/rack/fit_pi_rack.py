"""Fits the table of a rack of fifteen Raspberry Pis to the seconds that were published of it.

    python -m lab.rack.fit_pi_rack calibration.csv [--refits 10] [--write]

The file has a row per aggregation: data (iid, noniid), boards (all_rpi5, mixed), algorithm, seed,
server_step, client_updates, seconds and accuracy. The settings are those of
``conf/experiment/pi_rack.yaml``. Without ``--write`` the fit is only shown.

``interval`` is the 95 % interval of a value. The fit is repeated on logs that the simulator draws
with the fitted table, as long as the real ones. So it has what chance does to orders, and not what
differs between real runs.

A server's log says when versions came, and not what a device or the server took. So the seconds are
those with which the simulator comes to the log's:

- Rounds on equal boards take the longest of fifteen orders, the receipts that come after it, and an
  evaluation. Buffers of ten on these boards take two thirds of a client's cycle. Their deviation,
  and that long and short ones alternate, say what share the evaluation has. These four numbers
  give the seconds of an order and their spread, of a receipt and of an evaluation.
- Rounds on mixed boards then give the seconds of the slower board.
- A first round is longer than the others by what the apps need to start.

Three things cannot be told apart, and are set [A]: a dispatch takes as long as a receipt; an
aggregation takes no time of its own; transfers are part of an order's seconds. The server looks for
replies every second, as its authors say.

Rounds on mixed boards last 159.5 s with iid data, with other data 160 s or about 137 s, whatever
the round. So one slower board is slower than the others, and its client is small where rounds are
short. Equal boards do not explain it: all five clients would have below 2,200 examples in two
partitions of three, and at most 1 % of partitions have that. The two short rounds give the
seconds of the next two boards. The last two boards take as long as the third [A].

The partition with data that are not iid is not published. The script finds the first seeds whose
partition (Dirichlet 0.3 without balance, at most 2,500 examples) has rounds as long as the log's.
"""

import argparse
import csv
import json
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
from scipy.optimize import differential_evolution, minimize

from fl_app.algorithms.fedbuff import FedBuff
from fl_app.core.events import Aggregated, Event
from fl_app.core.types import Order, Upload
from fl_app.core.vector import read_only
from fl_app.devices import Boards, Fleet, MeasuredServer
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Buffered, synchronous
from fl_app.tasks.partition import Dirichlet, make_partition

TABLE = Path(__file__).parents[2] / "fl_app" / "devices" / "tables" / "pi_rack.json"
EXAMPLES = 2500
BOARDS = {"all_rpi5": {"rpi5": 15}, "mixed": {"rpi5": 10, "rpi4": 5}}
POLL = 1.0
SEEDS = 3
BUFFERS = {"fedavg": 15, "fedbuff": 10}
REFIT = 80  # evaluations of a refit, which begins at the fitted values
TWO_SIDED = NormalDist().inv_cdf(0.975)
Log = dict[int, list[float]]  # seed -> seconds of every aggregation


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the fit, and write the table if that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m lab.rack.fit_pi_rack")
    parser.add_argument("calibration", type=Path, help="CSV, as above")
    parser.add_argument("--refits", type=int, default=10, help="for the intervals (10); 0 = none")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    given = parser.parse_args(arguments)
    if given.refits < 0:
        parser.error(f"--refits {given.refits} must be at least 0: it is a number of fits")
    try:
        logs = read(given.calibration)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    table = fit(logs)
    seeds = seeds_for(longest_of(logs, table), table["kinds"]["rpi4"]["seconds"])
    if given.refits:
        draws = (drawn(logs, table, seeds, number) for number in range(given.refits))
        add_intervals(table, [fit(draw, near=table) for draw in draws])
    show(logs, table, longest_of(logs, table), seeds)
    if given.write:
        TABLE.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        print(f"written: {TABLE}")
    return 0


def read(path: Path) -> dict[tuple[str, str, str], Log]:
    """Seconds of aggregations by setting (data, boards, algorithm) and seed.

    Raises:
        ValueError: the file has other columns.
    """
    logs: dict[tuple[str, str, str], Log] = defaultdict(lambda: defaultdict(list))
    with path.open(encoding="utf-8", newline="") as file:
        try:
            for row in csv.DictReader(file):
                setting = row["data"], row["boards"], row["algorithm"]
                logs[setting][int(row["seed"])].append(float(row["seconds"]))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path} is no calibration: {error!r}; the docstring says") from error
    return logs


# -- the simulator --------------------------------------------------------------------------------


class Nothing:
    """A client that does nothing."""

    def __init__(self) -> None:
        self._vector = read_only(np.zeros(1, np.float32))

    def train(self, order: Order) -> Upload:
        return Upload(self._vector, "delta", 1, 0.0)

    def score(self, order: Order) -> Any:
        raise NotImplementedError


class Versions:
    """Sink that keeps when versions were published."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Aggregated):
            self.seconds.append(event.t)

    def close(self) -> None: ...


def simulated(
    table: Mapping[str, Any],
    boards: str,
    algorithm: str,
    num_versions: int,
    *,
    sizes: Sequence[int] = (EXAMPLES,) * 15,
    seed: int = 0,
) -> list[float]:
    """Seconds of the aggregations of a run without training.

    A log's seconds are told after the evaluation, so the evaluation is added.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(table, file)
        file.flush()
        compute = Boards(
            num_clients=15,
            num_examples=sizes,
            table=file.name,
            boards=BOARDS[boards],
            seed=seed,
        )
        server = MeasuredServer(table=file.name)
    versions = Versions()
    size = BUFFERS[algorithm]
    Engine(
        strategy=FedBuff(),
        schedule=synchronous(size) if algorithm == "fedavg" else Buffered(15, size),
        clock=VirtualClock(Inline(Nothing()), Fleet(compute), 15, seed=seed, server=server),
        initial=np.zeros(1, np.float32),
        stop=Stop(num_versions=num_versions),
        evaluate=lambda version, vector: {},
        sinks=[versions],
        seed=seed,
    ).run()
    evaluation = table["server"]["evaluation"]
    return [seconds + evaluation for seconds in versions.seconds]


def table_of(
    rpi5: float,
    spread: float,
    receipt: float,
    evaluation: float,
    rpi4: Sequence[float] = (1.0,),
) -> dict[str, Any]:
    """A device file; first orders take as long as others."""
    kind = {"spread": spread, "first": 0.0, "examples": EXAMPLES}
    return {
        "boards": BOARDS["mixed"],
        "kinds": {"rpi5": {"seconds": rpi5, **kind}, "rpi4": {"seconds": [*rpi4], **kind}},
        "server": {
            "dispatch": receipt,
            "receipt": receipt,
            "aggregation": 0.0,
            "evaluation": evaluation,
            "poll": POLL,
            "serial": True,
        },
    }


# -- the fit --------------------------------------------------------------------------------------


def steps(runs: Iterable[Sequence[float]]) -> list[list[float]]:
    """Seconds from one aggregation to the next, without the first order's extra."""
    return [list(np.diff(run)) for run in runs]


def mean_step(runs: Iterable[Sequence[float]]) -> float:
    """Mean over the runs of their mean step, seconds."""
    return fmean(fmean(run) for run in steps(runs))


def course(runs: Iterable[Sequence[float]]) -> tuple[float, float, float]:
    """Mean and deviation of steps, and the correlation of neighbours, after the first six."""
    settled = [run[6:] for run in steps(runs)]
    alike = fmean(float(np.corrcoef(run[:-1], run[1:])[0, 1]) for run in settled)
    return fmean(map(fmean, settled)), fmean(map(stdev, settled)), alike


def fit(
    logs: Mapping[tuple[str, str, str], Log], near: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The device file with which the simulator comes closest to the logs.

    Args:
        logs: of all settings.
        near: a device file with which the search begins; None = it looks everywhere.
    """
    equal = [run for data in ("iid", "noniid") for run in logs[data, "all_rpi5", "fedavg"].values()]
    a_round = mean_step(equal)
    a_buffer, deviation, alike = course(logs["iid", "all_rpi5", "fedbuff"].values())

    def misfit(values: Sequence[float]) -> float:
        rpi5, spread, receipt, evaluation = values
        table = table_of(rpi5, spread, receipt, evaluation)
        rounds = [simulated(table, "all_rpi5", "fedavg", 13, seed=seed) for seed in range(SEEDS)]
        buffers = [simulated(table, "all_rpi5", "fedbuff", 40, seed=seed) for seed in range(SEEDS)]
        step, deviates, same = course(buffers)
        # A per cent of a step weighs as much as a tenth of the deviation or of the correlation.
        return math.hypot(
            100 * (mean_step(rounds) / a_round - 1),
            100 * (step / a_buffer - 1),
            10 * (deviates / deviation - 1),
            10 * (same - alike),
        )

    guess = 1.5 * a_buffer  # fifteen clients, ten a buffer
    bounds = [(0.6 * guess, guess), (0.0, 0.05), (0.0, 0.8), (0.0, 0.7 * a_buffer)]
    if near is None:
        found = differential_evolution(misfit, bounds, seed=0, maxiter=12, popsize=6, polish=False)
    else:
        kind, server = near["kinds"]["rpi5"], near["server"]
        start = [kind["seconds"], kind["spread"], server["receipt"], server["evaluation"]]
        corners = [[*start[:i], 0.85 * start[i], *start[i + 1 :]] for i in range(len(start))]
        options = {"initial_simplex": [start, *corners], "maxfev": REFIT}
        found = minimize(misfit, start, method="Nelder-Mead", bounds=bounds, options=options)
    rpi5, spread, receipt, evaluation = (float(value) for value in found.x)
    print(f"misfit {found.fun:.2f} after {found.nfev} evaluations")

    mixed = mean_step(logs["iid", "mixed", "fedavg"].values())
    rpi4 = mixed - a_round + rpi5
    for _ in range(4):  # a round grows by what the slowest order does, but for the poll's grid
        table = table_of(rpi5, spread, receipt, evaluation, [rpi4] + 4 * [0.8 * rpi4])
        runs = [simulated(table, "mixed", "fedavg", 13, seed=seed) for seed in range(SEEDS)]
        rpi4 += mixed - mean_step(runs)
    shorter = sorted(mixed - mean_step([run]) for run in logs["noniid", "mixed", "fedavg"].values())
    _, second, third = (rpi4 - max(less, 0.0) for less in shorter)
    table = table_of(rpi5, spread, receipt, evaluation, [rpi4, second, third, third, third])
    for boards, kind in (("all_rpi5", "rpi5"), ("mixed", "rpi4")):
        runs = [simulated(table, boards, "fedavg", 2, seed=seed)[:1] for seed in range(SEEDS)]
        firsts = [
            run[0] for data in ("iid", "noniid") for run in logs[data, boards, "fedavg"].values()
        ]
        table["kinds"][kind]["first"] = fmean(firsts) - fmean(run[0] for run in runs)
    table["kinds"]["rpi4"]["seconds"] = [round(s, 4) for s in table["kinds"]["rpi4"]["seconds"]]
    for values in (*table["kinds"].values(), table["server"]):
        values |= {k: round(v, 4) for k, v in values.items() if isinstance(v, float)}
    return {
        "about": "fifteen Raspberry Pis under Flower, by lab/rack/fit_pi_rack.py; README.md",
        **table,
    }


def longest_of(
    logs: Mapping[tuple[str, str, str], Log], table: Mapping[str, Any]
) -> dict[int, float]:
    """Of every seed, the longest order of the slower boards with data that are not iid, seconds."""
    mixed = mean_step(logs["iid", "mixed", "fedavg"].values())
    slowest = table["kinds"]["rpi4"]["seconds"][0]
    runs = logs["noniid", "mixed", "fedavg"].items()
    return {seed: slowest - max(mixed - mean_step([run]), 0.0) for seed, run in runs}


def partition(seed: int) -> list[int]:
    """Sizes of the clients of a run with this seed."""
    labels = np.repeat(np.arange(10), 5000)
    dirichlet = Dirichlet(alpha=0.3, balance=False, max_size=EXAMPLES)
    return [part.size for part in make_partition(dirichlet, labels, 15, seed)]


def seeds_for(longest: Mapping[int, float], means: Sequence[float]) -> dict[int, int]:
    """Of every seed of the log, the first whose partition agrees with its longest order.

    Args:
        longest: of every seed of the log, seconds.
        means: of the slower boards, seconds with all examples.
    """
    found: dict[int, int] = {}
    for seed in range(10_000):
        sizes = partition(seed)
        order = max(m * n / EXAMPLES for m, n in zip(means, sizes[10:], strict=True))
        for logged, seconds in longest.items():
            new = logged not in found and seed not in found.values()
            if new and max(sizes) == EXAMPLES and abs(order / seconds - 1) < 0.01:
                found[logged] = seed
        if len(found) == len(longest):
            return found
    raise ValueError(f"no partition agrees with {longest}")


# -- the intervals --------------------------------------------------------------------------------


def drawn(
    logs: Mapping[tuple[str, str, str], Log],
    table: Mapping[str, Any],
    seeds: Mapping[int, int],
    number: int,
) -> dict[tuple[str, str, str], Log]:
    """Logs as long as these that the simulator draws with a table.

    Args:
        logs: the real ones.
        table: a device file.
        seeds: of every seed of the logs, that of its partition.
        number: of the draw, >= 0; another one has other draws.
    """
    return {
        (data, boards, algorithm): {
            seed: simulated(
                table,
                boards,
                algorithm,
                len(run),
                sizes=partition(seeds[seed]) if data == "noniid" else (EXAMPLES,) * 15,
                seed=1000 * (number + 1) + place,
            )
            for place, (seed, run) in enumerate(runs.items())
        }
        for (data, boards, algorithm), runs in logs.items()
    }


def add_intervals(table: dict[str, Any], refits: Sequence[Mapping[str, Any]]) -> None:
    """Add ``interval``, the 95 % interval of what was fitted, to kinds and server.

    It has the mean square by which refits miss the value with which their logs were drawn. So it
    also has what the fit gets wrong every time.

    Args:
        table: gets them.
        refits: device files, fitted to logs that were drawn with `table`; at least one.
    """

    def interval(value: float, others: Sequence[float]) -> list[float]:
        half = TWO_SIDED * math.sqrt(fmean((other - value) ** 2 for other in others))
        return [round(value - half, 4), round(value + half, 4)]

    for name, kind in table["kinds"].items():
        again = [refit["kinds"][name]["seconds"] for refit in refits]
        if isinstance(kind["seconds"], list):
            columns = zip(kind["seconds"], *again, strict=True)
            kind["interval"] = [interval(value, others) for value, *others in columns]
        else:
            kind["interval"] = interval(kind["seconds"], again)
    table["server"]["interval"] = {
        what: interval(table["server"][what], [refit["server"][what] for refit in refits])
        for what in ("receipt", "evaluation")
    }


def show(
    logs: Mapping[tuple[str, str, str], Log],
    table: Mapping[str, Any],
    longest: Mapping[int, float],
    found: Mapping[int, int],
) -> None:
    """Print the table, and the simulated seconds beside the measured ones."""
    print(json.dumps(table, indent=2))
    for logged, seconds in longest.items():
        seed = found[logged]
        print(f"seed {logged}: longest order {seconds:.1f} s: seed {seed}, {partition(seed)}")
    print("| data | boards | algorithm | measured s a version | simulated | error |")
    print("|---|---|---|---|---|---|")
    for (data, boards, algorithm), runs in logs.items():
        came = []
        for seed, run in runs.items():
            sizes = partition(found[seed]) if data == "noniid" else [EXAMPLES] * 15
            came.append(
                simulated(table, boards, algorithm, len(run), sizes=sizes, seed=found[seed])
            )
        measured, predicted = mean_step(runs.values()), mean_step(came)
        error = predicted / measured - 1
        print(
            f"| {data} | {boards} | {algorithm} | {measured:.2f} | {predicted:.2f} | {error:+.1%} |"
        )


if __name__ == "__main__":
    sys.exit(main())
