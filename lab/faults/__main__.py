"""``python -m lab.faults``: inject faults, one at a time, into a federation of real processes.

Prints a table with the observation and the verdict on each fault. Exits with 1 if one failed.
"""

import argparse
import random
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from fl_app import Result
from fl_app.core.errors import RunError
from fl_app.core.events import Aggregated, Arrived, Event
from fl_app.record.log import read_events
from lab.demo import new_folder
from lab.faults.field import NODES, PATIENCE, SECONDS, Field
from lab.faults.injections import FAULTS, Fault, random_kills

SILENCE = 3 * SECONDS + 6.0  # seconds that a client without a fault may be without an update
ESTIMATE = 100.0  # seconds of a fault; the number of versions follows from it
CYCLE = 8.5  # minimum seconds of an order: the client sleeps for 8
BUFFER = 2  # updates in a version
OVERRIDES = (
    *("algorithm=fedbuff", "runtime=deployment", "partition=iid", "deadline=80"),
    *("task=digits", "task.model=logistic", f"num_clients={NODES}"),
    *(f"algorithm.schedule.concurrency={NODES}", f"algorithm.schedule.buffer_size={BUFFER}"),
    *("algorithm.client.local_epochs=1", "eval_every=1000", "checkpoint_every=1"),
)


@dataclass
class Row:
    """A fault and its effects.

    Attributes:
        fault: name.
        observation: what the injection observed.
        problems: why it did not pass.
        seconds: that it lasted.
    """

    fault: str
    observation: str = ""
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def withstand(faults: Mapping[str, Fault], folder: Path) -> list[Row]:
    """Inject faults into one federation and one run; returns a row for each fault.

    Args:
        faults: by their names.
        folder: new; for logs and the run's files.
    """
    rows: list[Row] = []
    error_text = ""
    versions = round(ESTIMATE * len(faults) * NODES / CYCLE / BUFFER)
    folder.mkdir(parents=True)
    try:
        with Field(folder, [*OVERRIDES, f"num_versions={versions}"]) as federation:
            federation.begin()
            for name, fault in faults.items():
                row = observe(name, fault, federation)
                rows.append(row)
                print(f"  {name}: {'; '.join([row.observation, *row.problems])}", flush=True)
            federation.finish(ESTIMATE * len(faults) + PATIENCE)
    except (RunError, OSError, ValueError) as error:
        error_text = str(error)
        traceback.print_exc()
    rows += [Row(name, problems=["never injected"]) for name in [*faults][len(rows) :]]
    problems = [f"the run: {error_text}"] if error_text else problems_of(folder / "run")
    for row in rows:
        row.problems += problems
    return rows


def observe(name: str, fault: Fault, federation: Field) -> Row:
    """Inject a fault; returns its row."""
    versions = [event for event in federation.events() if isinstance(event, Aggregated)]
    row, start, began = Row(name), federation.history().t, time.monotonic()
    try:
        row.observation = fault.inject(federation, fault.node)
    except (RunError, psutil.Error) as error:
        row.problems.append(str(error))
    row.seconds = time.monotonic() - began
    events = federation.events()
    end = events[-1].t
    row.problems += [f"version {e.version} was rolled back" for e in versions if e not in events]
    for client in set() if fault.node is None else {*range(NODES)} - {fault.node}:
        if (seconds := silence(events, client, start, end)) > SILENCE:
            row.problems.append(f"client {client} had no update for {seconds:.0f} s")
    return row


def silence(events: Iterable[Event], client: int, start: float, end: float) -> float:
    """The longest time without an arrival of a client in an interval, seconds."""
    arrivals = [e.t for e in events if isinstance(e, Arrived) and e.client == client]
    moments = [start, *(t for t in arrivals if start < t < end), end]
    return max(later - earlier for earlier, later in pairwise(moments))


def problems_of(run: Path) -> list[str]:
    """The problems in the files of a run that has ended."""
    problems = []
    waiting: set[int] = set()
    versions: list[int] = []
    for event in read_events(run / "events.jsonl"):
        if isinstance(event, Arrived):
            waiting.add(event.order)
        elif isinstance(event, Aggregated):
            versions.append(event.version)
            if not waiting.issuperset(event.order):
                problems.append(f"version {event.version} holds an update that was not there")
            waiting.difference_update(event.order)
    if versions != [*range(1, len(versions) + 1)]:
        problems.append("the log does not hold every version once")
    stopped = Result(run).summary["stopped"]
    return problems + ([] if stopped == "num_versions" else [f"the run stopped with {stopped}"])


def main() -> int:
    """The command line; returns 0 if no fault failed, 130 after Ctrl-C, else 1."""
    parser = argparse.ArgumentParser(prog="python -m lab.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=[*FAULTS], metavar="NAME",
                        help=", ".join(FAULTS))  # fmt: skip
    parser.add_argument("--random", type=int, metavar="N", help="kill N random processes instead")
    parser.add_argument("--seed", type=int, default=0, help="of --random")
    options = parser.parse_args()
    faults = {name: FAULTS[name] for name in options.only}
    if options.random:
        faults = random_kills(options.random, random.Random(options.seed))
    folder = new_folder("faults")
    try:
        rows = withstand(faults, folder)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    table = Table("fault", "verdict", "what was seen", "s")
    for row in rows:
        verdict = "[red]failed[/]" if row.problems else "[green]passed[/]"
        text = "; ".join(filter(None, [row.observation, *row.problems]))
        table.add_row(row.fault, verdict, text.replace("[", "\\["), f"{row.seconds:.0f}")
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    print(f"Files: {folder}")
    return int(any(row.problems for row in rows))


if __name__ == "__main__":
    sys.exit(main())
