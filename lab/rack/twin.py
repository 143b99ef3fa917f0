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
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from fl_app.cli import compose
from fl_app.core.errors import RunError
from fl_app.core.events import Aggregated, Arrived, Evaluated
from fl_app.record.log import read_events
from fl_app.runner.cell import run_cell
from lab.demo import Federation
from lab.faults.field import APP
from lab.faults.link import HOST, Link
from lab.rack.fit import main as fit

# Of every node: seconds that it waits in an order, delay of its link each way, bytes per second.
NODES = (
    *((1.0, 0.0, 1e6), (2.0, 0.02, 1e6), (3.0, 0.05, 5e5), (4.0, 0.0, 2e5)),
    *((6.0, 0.1, 1e5), (8.0, 0.05, 1e5), (10.0, 0.1, 5e4), (14.0, 0.2, 5e4)),
)
TARGETS = (0.85, 0.9)
SMOOTHED = 5  # evaluations whose mean has to reach one
SIMULATIONS = 5
TWO_SIDED = NormalDist().inv_cdf(0.975)
ONLINE = 240.0  # seconds that starting and ending may take
RUN = (
    *("algorithm=fedbuff", "task=digits", "partition=dirichlet", f"num_clients={len(NODES)}"),
    *("num_versions=null", "eval_every=1", "seed=0", f"experiment.report_accuracy={TARGETS[-1]}"),
    *(f"algorithm.schedule.concurrency={len(NODES)}", "algorithm.schedule.buffer_size=4"),
)


@dataclass
class Course:
    """What happened in a part of a run.

    Attributes:
        rate: updates a second.
        age: mean staleness of the updates that were aggregated.
        shares: client -> its share of the updates.
        reached: of `TARGETS`, second of the first evaluation at which the mean of the last five is
            there, of the whole run.
    """

    rate: float
    age: float
    shares: dict[int, float]
    reached: dict[float, float]


def course(log: Path, since: float, until: float) -> Course:
    """The part of a log between two seconds."""
    counts: Counter[int] = Counter()
    ages: list[int] = []
    last: deque[float] = deque(maxlen=SMOOTHED)
    reached: dict[float, float] = {}
    for event in read_events(log):
        inside = since <= event.t < until
        if isinstance(event, Arrived) and inside:
            counts[event.client] += 1
        elif isinstance(event, Aggregated) and inside:
            ages += event.age
        elif isinstance(event, Evaluated) and "accuracy" in event.metrics:
            last.append(event.metrics["accuracy"])
            for target in TARGETS:
                if len(last) == SMOOTHED and fmean(last) >= target:
                    reached.setdefault(target, event.t)
    total = counts.total()
    shares = {client: count / total for client, count in counts.items()}
    return Course(total / (until - since), fmean(ages), shares, reached)


def record(folder: Path, seconds: float) -> Path:
    """Run the federation for so many seconds; the log of its run.

    Raises:
        RunError: a process or the run failed.
    """
    federation = Federation(folder, len(NODES), limit=seconds + ONLINE, app=APP)
    port = int(federation.kit.address.rpartition(":")[2])
    links: list[Link] = []
    try:
        for _, delay, speed in NODES:
            link = Link(port, speed)
            link.up.delay = link.down.delay = delay
            links.append(link)
        configs = [f"real=true wait={wait}" for wait, *_ in NODES]
        federation.start(configs, [f"{HOST}:{link.port}" for link in links])
        words = [*RUN, "runtime=deployment", f"max_seconds={seconds}"]
        federation.run(folder / "run", words)
    finally:
        for disturbance in (signal.SIGINT, signal.SIGTERM):
            signal.signal(disturbance, signal.SIG_IGN)  # a second one would leave processes
        ended = federation.stop()
        for link in links:
            link.close()
        if not ended:
            print("error: a process did not end", file=sys.stderr)
    return folder / "run" / "events.jsonl"


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
    """Simulate the run with the fitted table and with draws from it; the logs."""
    logs = []
    for number in range(SIMULATIONS):
        here = folder / f"predicted-{number}"
        path = folder / f"drawn-{number}.json"
        path.write_text(json.dumps(drawn(table, number)))
        words = [*RUN, "devices=boards", f"devices.table={path}", f"max_seconds={seconds}"]
        run_cell(compose([*words, "runtime.workers=0"]), here, label=here.name)
        logs.append(here / "events.jsonl")
    return logs


def mean_of(courses: Sequence[Course]) -> Course:
    """The mean of simulations; a target that one of them does not reach is left out."""
    clients = {client for each in courses for client in each.shares}
    return Course(
        rate=fmean(each.rate for each in courses),
        age=fmean(each.age for each in courses),
        shares={
            client: fmean(each.shares.get(client, 0.0) for each in courses) for client in clients
        },
        reached={
            target: fmean(each.reached[target] for each in courses)
            for target in TARGETS
            if all(target in each.reached for each in courses)
        },
    )


def show(measured: Course, simulations: Sequence[Course]) -> None:
    """Print the comparison."""
    predicted = mean_of(simulations)

    def line(name: str, real: float | None, simulated: float | None, form: str) -> None:
        if real and simulated is not None:
            error = f"{simulated / real - 1:+.1%}"
            print(f"| {name} | {real:{form}} | {simulated:{form}} | {error} |")
        else:
            print(f"| {name} | {real} | {simulated} | |")

    print("| second half | measured | predicted | error |\n|---|---|---|---|")
    line("updates a second", measured.rate, predicted.rate, ".4f")
    line("mean staleness", measured.age, predicted.age, ".3f")
    for client in range(len(NODES)):
        shares = [each.shares.get(client) for each in (measured, predicted)]
        line(f"share of node {client}", shares[0], shares[1], ".1%")
    for target in TARGETS:
        times = [each.reached.get(target) for each in (measured, predicted)]
        line(f"seconds to {target:.0%}, whole run", times[0], times[1], ".1f")
    for target in TARGETS:
        each = ", ".join(
            f"{one.reached[target]:.1f}" if target in one.reached else "never"
            for one in simulations
        )
        print(f"Seconds to {target:.0%} of the simulations: {each}")


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
        log = record(folder, seconds)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    table = folder / "fitted.json"
    if fit([str(log), "--until", str(half), "--output", str(table)]):
        return 2
    fitted = json.loads(table.read_text())
    for name, values in fitted["kinds"].items():
        print(f"{name}: {values['seconds']:.2f} s, interval {values['interval']}")
    simulations = [course(each, half, seconds) for each in simulate(folder, fitted, seconds)]
    show(course(log, half, seconds), simulations)
    print(f"Files: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
