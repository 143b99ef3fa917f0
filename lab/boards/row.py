"""Rows of the table: what was tried, and how it ended."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fl_app.core.errors import RunError

Verdict = Literal["passed", "failed", "impossible"]
# What install.sh, `packages.py` and uv say on a machine that reaches no packages.
NO_NETWORK = (
    "No matching distribution found for uv",
    "error sending request",
    "to a network, and run",
)
COLOURS: dict[Verdict, str] = {"passed": "green", "failed": "red", "impossible": "yellow"}


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was tried.

    Attributes:
        part: name of the part that tried it.
        what: was tried.
        verdict: "impossible" if this machine lacks what it needs.
        seconds: that it took.
        detail: what was seen. If impossible: what is missing, and how to get it.
    """

    part: str
    what: str
    verdict: Verdict
    seconds: float
    detail: str


class Disappointed(Exception):
    """What should have happened did not happen."""


class Impossible(Exception):
    """This machine lacks something; the message says what, and how to get it."""


def attempt(part: str, steps: Sequence[tuple[str, Callable[[], str]]]) -> Iterator[Row]:
    """Carry out steps one after the other; yield a row for each.

    After a step that failed or is impossible, the others are not carried out, as they need it. One
    row names them.

    Args:
        part: name of the part.
        steps: what is tried, and the function that tries it. It returns what it saw.
    """
    for i, (what, action) in enumerate(steps):
        began = time.monotonic()
        verdict: Verdict = "passed"
        try:
            detail = action()
        except Impossible as error:
            verdict, detail = "impossible", str(error)
        except Disappointed as error:
            verdict, detail = "failed", str(error)
            if any(sign in detail for sign in NO_NETWORK):
                verdict = "impossible"
        except (RunError, subprocess.SubprocessError, OSError, ValueError) as error:
            verdict, detail = "failed", str(error)
        yield Row(part, what, verdict, time.monotonic() - began, detail)
        if verdict != "passed":
            if rest := [name for name, _ in steps[i + 1 :]]:
                yield Row(part, "; ".join(rest), verdict, 0.0, f"not tried, for want of: {what}")
            return


def wait_for(true: Callable[[], bool], what: str, seconds: float, every: float = 1.0) -> float:
    """Wait until a condition is true; return the seconds that it took.

    Raises:
        Disappointed: it is not true in time.
    """
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise Disappointed(f"not within {seconds:g} s: {what}")
        time.sleep(every)
    return time.monotonic() - began


def line(row: Row) -> str:
    """A row as a line of text."""
    return f"{row.part}: {row.what}: {row.verdict}, {row.seconds:.0f} s: {row.detail}"


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    table = Table("part", "what", "verdict", "s", "what was seen")
    for row in rows:
        verdict = f"[{COLOURS[row.verdict]}]{row.verdict}[/]"
        table.add_row(row.part, escape(row.what), verdict, f"{row.seconds:.0f}", escape(row.detail))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
