"""What the files of a run tell: orders, arrival rates, and whether it withstood its faults."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fl_app.core.events import Aggregated, Arrived, Event, Failed, Rejected
from fl_app.record.history import History, OrderRecord
from fl_app.record.log import read_events

KEPT = 0.8  # least share of their arrival rate that clients without a fault must keep

Span = tuple[float, float]  # seconds on the run's clock


def orders(events: Iterable[Event], client: int) -> list[OrderRecord]:
    """The orders of one client in the sequence in which they were given."""
    history = History(keep_orders=True)
    for event in events:
        history.emit(event)
    return [order for order in history.orders if order.client == client]


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


def rate(arrivals: Sequence[float], start: float, end: float, usual: float | None = None) -> float:
    """Arrivals of one client per second in an interval, from the time between arrivals.

    A count over the interval could be wrong by one arrival, which is much in a short interval.

    Args:
        arrivals: times, ascending.
        start: of the interval, seconds.
        end: of the interval, seconds.
        usual: arrivals per second before the interval. A client without an arrival for twice the
            usual time counts as silent until the end.
    """
    before = [t for t in arrivals if t <= start]
    within = [t for t in arrivals if start < t <= end]
    since = before[-1] if before else start
    until = within[-1] if within else since
    if usual is not None and (end - until) * usual > 2.0:
        until = end
    return len(within) / (until - since) if until > since else 0.0


def share(
    events: Iterable[Event],
    others: Collection[int],
    calm: Sequence[Span],
    disturbed: Span,
) -> float:
    """The arrival rate of the other clients during a fault, relative to their rate without it.

    Args:
        events: of the run.
        others: clients without the fault.
        calm: intervals without a fault. The slowest one counts, since the load of this machine
            varies, but at least half of the fastest rate: otherwise clients that never recover
            would be missed.
        disturbed: interval with the fault.
    """
    arrived = [event for event in events if isinstance(event, Arrived)]
    times = {c: [event.t for event in arrived if event.client == c] for c in others}
    usual = min(
        ({c: rate(times[c], *span) for c in others} for span in calm),
        key=lambda rates: sum(rates.values()),
    )
    kept = sum(rate(times[c], *disturbed, usual=usual[c]) for c in others)
    fastest = max(sum(rate(times[c], *span) for c in others) for span in calm)
    before = max(sum(usual.values()), fastest / 2)
    return kept / before if before else 0.0


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
