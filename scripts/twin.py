"""A federation of real nodes on this machine, and the simulator's prediction of it: ``make twin``.

    python -m scripts.twin [--seconds 600]

Eight SuperNodes train on digits under FedBuff. They wait for known, unequal seconds in every order,
and each has a link of known delay and bandwidth. The device file is fitted to the first half of the
log. The run is then simulated with it and compared with the second half: updates a second, their
staleness and the share of every node. The seconds to a target are those of the whole run.

Neither the waits nor the links are told to the fit.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from faults.field import APP
from faults.link import HOST, Link
from fl_app.cli import compose
from fl_app.core.events import Aggregated, Arrived, Evaluated
from fl_app.devices.fit import main as fit
from fl_app.field.demo import run_on
from fl_app.field.loopback import Federation, FederationError, free_ports
from fl_app.record.log import read_events
from fl_app.runner.cell import run_cell

# Of every node: seconds that it waits in an order, delay of its link each way, bytes per second.
NODES = (
    *((1.0, 0.0, 1e6), (2.0, 0.02, 1e6), (3.0, 0.05, 5e5), (4.0, 0.0, 2e5)),
    *((6.0, 0.1, 1e5), (8.0, 0.05, 1e5), (10.0, 0.1, 5e4), (14.0, 0.2, 5e4)),
)
TARGET = 0.9
ONLINE = 240.0  # seconds that starting and ending may take
RUN = (
    *("algorithm=fedbuff", "task=digits", "partition=dirichlet", f"num_clients={len(NODES)}"),
    *("num_versions=null", "eval_every=1", "seed=0", f"experiment.report_accuracy={TARGET}"),
    *(f"algorithm.schedule.concurrency={len(NODES)}", "algorithm.schedule.buffer_size=4"),
)


@dataclass
class Course:
    """What happened in a part of a run.

    Attributes:
        rate: updates a second.
        age: mean staleness of the updates that were aggregated.
        shares: client -> its share of the updates.
        target: second of the first evaluation at `TARGET`, of the whole run; None = never.
    """

    rate: float
    age: float
    shares: dict[int, float]
    target: float | None


def course(log: Path, since: float, until: float) -> Course:
    """The part of a log between two seconds."""
    counts: Counter[int] = Counter()
    ages: list[int] = []
    target = None
    for event in read_events(log):
        inside = since <= event.t < until
        if isinstance(event, Arrived) and inside:
            counts[event.client] += 1
        elif isinstance(event, Aggregated) and inside:
            ages += event.age
        elif isinstance(event, Evaluated) and event.metrics.get("accuracy", 0.0) >= TARGET:
            target = event.t if target is None else target
    total = counts.total()
    shares = {client: count / total for client, count in counts.items()}
    return Course(total / (until - since), fmean(ages), shares, target)


def record(folder: Path, seconds: float) -> Path:
    """Run the federation for so many seconds; the log of its run.

    Raises:
        FederationError: a process or the run failed.
    """
    federation = Federation(folder, limit=seconds + ONLINE)
    links: list[Link] = []
    try:
        federation.start(0)
        address = (federation.home / "config.toml").read_text()
        port = int(address.partition(f"{HOST}:")[2].partition('"')[0])
        for node, (wait, delay, speed) in enumerate(NODES):
            link = Link(port, speed)
            link.up.delay = link.down.delay = delay
            links.append(link)
            (own,) = free_ports(1)
            federation.spawn(
                f"node-{node}",
                sys.executable,
                *("-m", "fl_app.node.warm", "--insecure", "--superlink", f"{HOST}:{link.port}"),
                *("--host", HOST, "--port", str(own), "--node-config"),
                f"partition-id={node} num-partitions={len(NODES)} resident=true wait={wait}",
            )
        while sum(n["status"] == "online" for n in nodes(federation)) < len(NODES):
            federation.wait(3.0)
        words = [*RUN, "runtime=deployment", "runtime.backend=numpy", f"max_seconds={seconds}"]
        run_on(federation, folder / "run", words, APP)
    finally:
        for disturbance in (signal.SIGINT, signal.SIGTERM):
            signal.signal(disturbance, signal.SIG_IGN)  # a second one would leave processes
        ended = federation.stop()
        for link in links:
            link.close()
        shutil.rmtree(federation.home, ignore_errors=True)
        if not ended:
            print("error: a process did not end", file=sys.stderr)
    return folder / "run" / "events.jsonl"


def nodes(federation: Federation) -> list[dict[str, str]]:
    """The nodes that the SuperLink knows; none while the machine is too busy to answer."""
    try:
        found: list[dict[str, str]] = federation.ask("supernode", "list", "demo")["nodes"]
    except FederationError:
        return []
    return found


def simulate(folder: Path, table: Path, seconds: float) -> Path:
    """Simulate the run with the fitted table; its log."""
    words = [*RUN, "devices=boards", f"devices.table={table}", f"max_seconds={seconds}"]
    run_cell(compose([*words, "runtime.workers=0"]), folder / "predicted", label="predicted")
    return folder / "predicted" / "events.jsonl"


def show(measured: Course, predicted: Course) -> None:
    """Print the comparison."""

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
    line(f"seconds to {TARGET:.0%} (whole run)", measured.target, predicted.target, ".1f")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 if the federation failed, 2 if nothing was fitted."""
    parser = argparse.ArgumentParser(prog="python -m scripts.twin")
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the run (600)")
    given = parser.parse_args(arguments)
    seconds, half = given.seconds, given.seconds / 2
    folder = Path(f"outputs/twin-{time.strftime('%Y-%m-%d-%H-%M-%S')}").resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        log = record(folder, seconds)
    except FederationError as error:
        text = error.log.read_text(errors="replace") if error.log.exists() else ""
        print(f"--- the end of {error.log}", *text.splitlines()[-25:], sep="\n", file=sys.stderr)
        print(f"error: {error}", file=sys.stderr)
        return 1
    table = folder / "fitted.json"
    if fit([str(log), "--until", str(half), "--output", str(table)]):
        return 2
    fitted = json.loads(table.read_text())["kinds"]
    for name, values in fitted.items():
        print(f"{name}: {values['seconds']:.2f} s, interval {values['interval']}")
    predicted = course(simulate(folder, table, seconds), half, seconds)
    show(course(log, half, seconds), predicted)
    print(f"Files: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
