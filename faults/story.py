"""What the event log of a run tells: what became of every order, and what entered the model."""

from collections.abc import Collection, Iterable, Sequence

from fl_app.core.events import Aggregated, Arrived, Event
from fl_app.record.history import History, OrderRecord

Span = tuple[float, float]  # seconds on the run's clock


def orders(events: Iterable[Event], client: int) -> list[OrderRecord]:
    """The orders of one client in the sequence in which they were given."""
    history = History(keep_orders=True)
    for event in events:
        history.emit(event)
    return [order for order in history.orders if order.client == client]


def never_arrived(events: Iterable[Event]) -> list[str]:
    """What was aggregated without an arrival of its own: nothing, if all went well."""
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
