"""Whether a run withstood the faults of its rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fl_app.core.events import Aggregated, Event, Failed, Rejected
from fl_app.record.log import read_events
from lab.faults.story import Span, never_arrived, share

KEPT = 0.8  # least share of their arrival rate that clients without a fault must keep


@dataclass
class Row:
    """A fault and its effects.

    Attributes:
        fault: name.
        seen: what the injection observed.
        problems: why it did not pass.
        others: clients without the fault.
        calm: intervals without a fault.
        disturbed: from the start of the fault to its end.
        versions: published by the end of the run.
        failures: failure events of all clients while disturbed.
        rejected: reject events of all clients while disturbed.
        kept: share of their arrival rate that the others kept; None for a fault of the server.
    """

    fault: str
    seen: str = ""
    problems: list[str] = field(default_factory=list)
    others: Sequence[int] = ()
    calm: Sequence[Span] = ()
    disturbed: Span = (0.0, 0.0)
    versions: int | None = None
    failures: int = 0
    rejected: int = 0
    kept: float | None = None

    @property
    def verdict(self) -> str:
        """Either "failed" or "passed"."""
        return "failed" if self.problems else "passed"

    @property
    def seconds(self) -> float:
        """Duration of the fault."""
        return self.disturbed[1] - self.disturbed[0]


def judge(rows: Sequence[Row], run: Path, ended: str) -> None:
    """Complete the rows from the files of their run.

    Args:
        rows: of the faults that were injected into the run.
        run: folder of the run.
        ended: why the run failed; "" if it did not.
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
    """Problems of a run that has ended, from its summary and its model."""
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
