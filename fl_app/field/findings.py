"""What `doctor` finds: good, wrong (with a remedy), or unknown."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich import box
from rich.console import Console
from rich.table import Table


class Verdict(StrEnum):
    """The verdict of one check, as the table shows it."""

    GOOD = "[green]ok[/]"
    WRONG = "[red]WRONG[/]"
    UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and how to mend what is wrong."""

    subject: str
    verdict: Verdict
    text: str
    mend: str = ""


def good(subject: str, text: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(subject, Verdict.GOOD, text)


def wrong(subject: str, text: str, mend: str) -> Finding:
    """Return a finding that keeps the federation from working, with its remedy."""
    return Finding(subject, Verdict.WRONG, text, mend)


def unknown(subject: str, text: str, mend: str = "") -> Finding:
    """Return a finding of something that could not be determined."""
    return Finding(subject, Verdict.UNKNOWN, text, mend)


def show(findings: Sequence[Finding]) -> int:
    """Print a table of findings; return 1 if one of them is wrong, else 0."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "checked", "found", "how to mend it"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(finding.verdict, finding.subject, finding.text, finding.mend)
    Console().print(table)
    count = sum(finding.verdict is Verdict.WRONG for finding in findings)
    print(f"{count or 'nothing'} wrong")
    return 1 if count else 0
