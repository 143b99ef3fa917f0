"""What the event log of a run tells: what became of every order, and what entered the model."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Span = tuple[float, float]  # seconds on the run's clock

OUTCOMES = ("arrival", "reject", "failure")


@dataclass
class Told:
    """One order and what came of it.

    Attributes:
        client: who had it.
        sequence: how many orders this client had before.
        base_version: of the model that it was given.
        sent: when, seconds.
        kind: of the event that ended it; "" while it is under way.
        reason: why it did not arrive.
        at: when it ended, seconds.
        late: what was told of its reply after it had been given up.
    """

    client: int
    sequence: int
    base_version: int
    sent: float
    kind: str = ""
    reason: str = ""
    at: float = 0.0
    late: str = ""


def read_events(path: Path) -> list[Event]:
    """The event log so far; a line that is not whole yet is left out."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def orders(events: Iterable[Event]) -> list[Told]:
    """The orders of a run in the sequence in which they were given."""
    told: list[Told] = []
    last: dict[int, Told] = {}
    for event in events:
        client: Any = event.get("client")
        if event["kind"] == "dispatch":
            sequence = last[client].sequence + 1 if client in last else 0
            last[client] = Told(client, sequence, event["version"], event["t"])
            told.append(last[client])
        elif event["kind"] in OUTCOMES and client in last:
            order, reason = last[client], event.get("reason", "")
            if order.kind:
                order.late = reason or event["kind"]
            else:
                order.kind, order.reason, order.at = event["kind"], reason, event["t"]
    return told


def never_arrived(events: Iterable[Event]) -> list[str]:
    """What was aggregated without an arrival of its own: nothing, if all went well."""
    problems = []
    waiting: Counter[tuple[int, int]] = Counter()
    for event in events:
        if event["kind"] == "arrival":
            waiting[event["client"], event["base_version"]] += 1
        elif event["kind"] == "aggregate":
            for client, age in zip(event["client"], event["age"], strict=True):
                base_version = event["version"] - 1 - age
                if not waiting[client, base_version]:
                    problems.append(
                        f"version {event['version']} holds an update of client {client} from "
                        f"version {base_version} that never arrived"
                    )
                waiting[client, base_version] -= 1
    return problems


def rate(arrivals: Sequence[float], start: float, end: float, usual: float | None = None) -> float:
    """Arrivals per second of one client between two moments, by the time that they are apart.

    Counting would be off by one arrival either way, half of what comes in a short while.

    Args:
        arrivals: moments, ascending.
        start: seconds.
        end: seconds.
        usual: arrivals per second before: who has been silent for longer than twice the usual time
            is counted as silent.
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
    """What the others kept of their rate of arrivals while one of them was disturbed.

    Args:
        events: of the run.
        others: clients.
        calm: when nothing was wrong; of several the one counts in which they were slowest, since
            other work on this machine comes and goes, but as no less than half of the fastest, or
            what never recovers would be missed.
        disturbed: when something was.
    """
    arrived = [event for event in events if event["kind"] == "arrival"]
    times = {c: [event["t"] for event in arrived if event["client"] == c] for c in others}
    usual = min(
        ({c: rate(times[c], *span) for c in others} for span in calm),
        key=lambda rates: sum(rates.values()),
    )
    kept = sum(rate(times[c], *disturbed, usual=usual[c]) for c in others)
    fastest = max(sum(rate(times[c], *span) for c in others) for span in calm)
    before = max(sum(usual.values()), fastest / 2)
    return kept / before if before else 0.0
