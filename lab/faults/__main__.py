"""``python -m lab.faults``: inject faults, one at a time, into federations of real processes.

Prints a table with what was observed of each fault, and a verdict. Exits with 1 if one failed.
"""

import argparse
import json
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from fl_app.core.errors import RunError
from lab.faults.field import NODES, Disappointed, Field, Run
from lab.faults.injections import GROUPS, SECONDS, Group, Injection
from lab.faults.story import KEPT, Row, Span, judge, share

WINDOW = 60.0  # seconds in which the others' rate is measured


def withstand(group: Group, folder: Path, window: float) -> list[Row]:
    """Inject a group's faults into one federation and one run; returns a row for each fault.

    Args:
        group: of faults.
        folder: new; for logs and the run's files.
        window: least seconds over which the rate of the other clients is measured.
    """
    rows = {each.name: Row(each.name, problems=["never injected"]) for each in group.injections}
    began, ended = time.monotonic(), ""
    print(f"{group.name}: starting {NODES} SuperNodes", flush=True)
    field, everybody = Field(folder, NODES), range(NODES)
    output = folder / "run"
    try:
        field.start(keys=group.keys)
        field.give(everybody, seconds=SECONDS)
        run = field.submit(group.overrides, output)
        run.until(lambda: run.answered() == {*everybody}, "every node has answered")
        first = quiet(run, window)
        for injection in group.injections:
            others = {*everybody} - {*injection.nodes}
            start = run.now()
            row = rows[injection.name] = observe(injection, run)
            print(f"  {row.fault}: {'; '.join([row.seen, *row.problems])}", flush=True)
            if others:
                run.wait(window - (run.now() - start))
            calm, disturbed = [first], (start, run.now())
            if others and share(run.events(), others, calm, disturbed) < KEPT:
                calm.append(quiet(run, window))  # to tell the fault from other load
            row.others, row.calm, row.disturbed = sorted(others), calm, disturbed
        field.give(everybody, seconds=0.0)
        run.finish()
    except (Disappointed, RunError, OSError, ValueError) as error:
        ended = str(error)
        traceback.print_exc()
    except KeyboardInterrupt:
        for disturbance in (signal.SIGINT, signal.SIGTERM):
            signal.signal(disturbance, signal.SIG_IGN)  # otherwise processes would be left
        raise
    finally:
        if not field.stop():
            ended = ended or "a process was left behind"
    judge(list(rows.values()), folder / "run", ended)
    print(f"{group.name}: {time.monotonic() - began:.0f} s", flush=True)
    return list(rows.values())


def quiet(run: Run, seconds: float) -> Span:
    """Wait for `seconds` without a fault; returns start and end."""
    start = run.now()
    run.wait(seconds)
    return start, run.now()


def observe(injection: Injection, run: Run) -> Row:
    """Inject a fault; returns its row."""
    try:
        return Row(injection.name, injection.inject(run))
    except (Disappointed, psutil.Error) as error:
        return Row(injection.name, problems=[str(error)])
    finally:
        run.field.mend()


def main() -> int:
    """The command line; returns 0 if no fault failed, 130 after Ctrl-C, else 1."""
    known = [each.name for group in GROUPS for each in group.injections]
    parser = argparse.ArgumentParser(prog="python -m lab.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME")
    parser.add_argument(
        "--keep", action="store_true", help="keep keys, databases and Flower's home"
    )
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args()
    groups = [group.only(options.only or known) for group in GROUPS]
    groups = [group for group in groups if group.injections]
    if options.list:
        print(*known, sep="\n")
        return 0
    folder = Path(f"outputs/faults-{time.strftime('%Y-%m-%d-%H-%M-%S')}").resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: leaves no process
    rows = []
    try:
        for group in groups:
            rows += withstand(group, folder / group.name, WINDOW)
            if not options.keep:
                shutil.rmtree(folder / group.name / "kit", ignore_errors=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    (folder / "table.json").write_text(json.dumps([told(row) for row in rows], indent=2) + "\n")
    show(rows)
    print(f"Files: {folder}")
    return int(any(row.verdict == "failed" for row in rows))


def told(row: Row) -> dict[str, object]:
    """A row as a JSON object."""
    return {**asdict(row), "verdict": row.verdict, "seconds": row.seconds}


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    table = Table("fault", "verdict", "what was seen")
    for heading in ("versions", "failures", "rejected", "others' rate", "s"):
        table.add_column(heading, justify="right")
    colours = {"passed": "green", "failed": "red"}
    for row in rows:
        verdict = f"[{colours[row.verdict]}]{row.verdict}[/]"
        text = "; ".join(filter(None, [row.seen, *row.problems]))
        kept = "-" if row.kept is None else f"{row.kept:.0%}"
        numbers = [*map(str, [row.versions or 0, row.failures, row.rejected]), kept]
        numbers.append(f"{row.seconds:.0f}")
        table.add_row(row.fault, verdict, text.replace("[", "\\["), *numbers)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


if __name__ == "__main__":
    sys.exit(main())
