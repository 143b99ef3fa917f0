"""``python -m lab.faults``: inject faults, one at a time, into federations of real processes.

Prints a table with what was observed of each fault, and a verdict. Exits with 1 if one failed.
With ``--random`` processes are killed at random instead.
"""

import argparse
import json
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from fl_app.core.errors import RunError
from fl_app.core.events import Aggregated, Arrived, Event
from fl_app.record.log import read_events
from lab.demo import Disappointed
from lab.faults.field import NODES, Field, Run
from lab.faults.injections import FAULTS, SECONDS, Group, Injection, random_kills
from lab.faults.link import HOST

SILENCE = 3 * SECONDS + 6.0  # seconds that a client without a fault may be without an update


@dataclass
class Row:
    """A fault and its effects.

    Attributes:
        fault: name.
        seen: what the injection observed.
        problems: why it did not pass.
        seconds: that it lasted.
        newest: the newest version before it, if there was one.
    """

    fault: str
    seen: str = ""
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    newest: Sequence[Aggregated] = ()


def withstand(group: Group, folder: Path) -> list[Row]:
    """Inject faults into one federation and one run; returns a row for each fault.

    Args:
        group: of faults.
        folder: new; for logs and the run's files.
    """
    rows: list[Row] = []
    ended = ""
    folder.mkdir(parents=True)
    federation, everybody = Field(folder), range(NODES)
    try:
        waits = [f"wait={SECONDS}" for _ in everybody]
        federation.start(waits, [f"{HOST}:{link.port}" for link in federation.links])
        run = Run(federation, group.overrides, folder / "run")
        run.until(lambda: run.answered() == {*everybody}, "every node has answered")
        for injection in group.injections:
            rows.append(observe(injection, run))
            print(
                f"  {rows[-1].fault}: {'; '.join([rows[-1].seen, *rows[-1].problems])}", flush=True
            )
        run.finish()
    except (Disappointed, RunError, OSError, ValueError) as error:
        ended = str(error)
        traceback.print_exc()
    except KeyboardInterrupt:
        for disturbance in (signal.SIGINT, signal.SIGTERM):
            signal.signal(disturbance, signal.SIG_IGN)  # otherwise processes would be left
        raise
    finally:
        if not federation.stop():
            ended = ended or "a process was left behind"
    rows += [Row(each.name, problems=["never injected"]) for each in group.injections[len(rows) :]]
    published = [event for row in rows for event in row.newest]
    problems = [f"the run: {ended}"] if ended else problems_of(folder / "run", published)
    for row in rows:
        row.problems += problems
    return rows


def observe(injection: Injection, run: Run) -> Row:
    """Inject a fault; returns its row."""
    newest = [event for event in run.events() if isinstance(event, Aggregated)][-1:]
    row, start = Row(injection.name, newest=newest), run.now()
    try:
        row.seen = injection.inject(run)
    except (Disappointed, psutil.Error) as error:
        row.problems.append(str(error))
    finally:
        run.field.mend()
    end, events = run.now(), run.events()
    row.seconds = end - start
    for client in {*range(NODES)} - {*injection.nodes}:
        if (silent := silence(events, client, start, end)) > SILENCE:
            row.problems.append(f"client {client} had no update for {silent:.0f} s")
    return row


def silence(events: Iterable[Event], client: int, start: float, end: float) -> float:
    """The longest time without an arrival of a client in an interval, seconds."""
    arrived = [e.t for e in events if isinstance(e, Arrived) and e.client == client]
    moments = [start, *(t for t in arrived if start < t < end), end]
    return max(later - earlier for earlier, later in pairwise(moments))


def problems_of(run: Path, published: Iterable[Aggregated]) -> list[str]:
    """What is wrong in the files of a run that has ended.

    Args:
        run: its folder.
        published: versions that were there at some time.
    """
    events = list(read_events(run / "events.jsonl"))
    problems = never_arrived(events)
    versions = {event.version: event for event in events if isinstance(event, Aggregated)}
    if [e.version for e in events if isinstance(e, Aggregated)] != [*range(1, len(versions) + 1)]:
        problems.append("the log does not hold every version once")
    for event in published:
        if versions.get(event.version) != event:
            problems.append(f"version {event.version} was rolled back")
    summary = json.loads((run / "summary.json").read_text())
    if summary["stopped"] != "num_versions":
        problems.append(f"the run stopped with {summary['stopped']}")
    with np.load(run / "model.npz", allow_pickle=False) as model:
        problems += [f"array {n!r} is not finite" for n in model if not np.isfinite(model[n]).all()]
    return problems


def never_arrived(events: Iterable[Event]) -> list[str]:
    """A sentence for every aggregated update that had not arrived, or was aggregated before."""
    problems = []
    waiting: set[int] = set()
    for event in events:
        if isinstance(event, Arrived):
            waiting.add(event.order)
        elif isinstance(event, Aggregated):
            for client, order, age in zip(event.client, event.order, event.age, strict=True):
                if order not in waiting:
                    problems.append(
                        f"version {event.version} holds an update of client {client} from "
                        f"version {event.version - 1 - age} that never arrived"
                    )
                waiting.discard(order)
    return problems


def main() -> int:
    """The command line; returns 0 if no fault failed, 130 after Ctrl-C, else 1."""
    known = [each.name for each in FAULTS.injections]
    parser = argparse.ArgumentParser(prog="python -m lab.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="NAME",
                        help=", ".join(known))  # fmt: skip
    parser.add_argument("--random", type=int, metavar="N", help="kill N processes at random")
    parser.add_argument("--seed", type=int, default=0, help="of --random")
    options = parser.parse_args()
    group = FAULTS.only(options.only)
    if options.random:
        group = random_kills(options.random, random.Random(options.seed))
    folder = Path(f"outputs/faults-{time.strftime('%Y-%m-%d-%H-%M-%S')}").resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: leaves no process
    try:
        rows = withstand(group, folder)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    table = Table("fault", "verdict", "what was seen", "s")
    for row in rows:
        verdict = "[red]failed[/]" if row.problems else "[green]passed[/]"
        text = "; ".join(filter(None, [row.seen, *row.problems]))
        table.add_row(row.fault, verdict, text.replace("[", "\\["), f"{row.seconds:.0f}")
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    print(f"Files: {folder}")
    return int(any(row.problems for row in rows))


if __name__ == "__main__":
    sys.exit(main())
