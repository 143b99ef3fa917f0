"""Whether a run withstood the faults of its rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from faults.story import Span, never_arrived, share
from fl_app.core.events import Aggregated, Event, Failed, Rejected
from fl_app.record.log import read_events

KEPT = 0.8  # share of their rate that those keep at least who have no fault


@dataclass
class Row:
    """A fault and what came of it.

    Attributes:
        fault: name.
        seen: what the run told of it.
        problems: why it did not pass.
        untested: why it could not be injected; "" if it was.
        others: clients without a fault of their own.
        calm: when nothing was wrong.
        disturbed: from the fault until it was over.
        versions: published by the end.
        failures: events while disturbed, of all clients.
        rejected: likewise.
        kept: share of their rate that the others kept; None where the server was the one disturbed.
    """

    fault: str
    seen: str = ""
    problems: list[str] = field(default_factory=list)
    untested: str = ""
    others: Sequence[int] = ()
    calm: Sequence[Span] = ()
    disturbed: Span = (0.0, 0.0)
    versions: int | None = None
    failures: int = 0
    rejected: int = 0
    kept: float | None = None

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.untested:
            return "untested"
        return "failed" if self.problems else "passed"

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.disturbed[1] - self.disturbed[0]


def judge(rows: Sequence[Row], run: Path, ended: str) -> None:
    """Complete the rows with what the files of their run tell.

    Args:
        rows: of faults that were injected into it.
        run: its folder.
        ended: why it did not end well; "" if it did.
    """
    events = list(read_events(run / "events.jsonl"))
    problems = [f"the run: {ended}"] if ended else [*of_files(run), *never_arrived(events)]
    versions = sum(isinstance(event, Aggregated) for event in events)
    for row in rows:
        row.problems += problems
        row.versions = versions
        row.failures = _count(events, Failed, row.disturbed)
        row.rejected = _count(events, Rejected, row.disturbed)
        if row.others and row.seconds > 0:
            row.kept = share(events, row.others, row.calm, row.disturbed)
            if row.kept < KEPT:
                row.problems.append(f"the others kept {row.kept:.0%} of their rate")


def of_files(run: Path) -> list[str]:
    """What is wrong with a run that has ended: its summary, and its model."""
    if not (run / "summary.json").exists():
        return ["there is no summary"]
    summary = json.loads((run / "summary.json").read_text())
    problems = []
    if summary["stopped"] != "num_versions":
        problems.append(f"the run stopped with {summary['stopped']}")
    with np.load(run / "model.npz", allow_pickle=False) as model:
        problems += [f"array {n!r} is not finite" for n in model if not np.isfinite(model[n]).all()]
    return problems


def _count(events: Sequence[Event], kind: type[Event], span: Span) -> int:
    return sum(isinstance(e, kind) and span[0] <= e.t <= span[1] for e in events)
