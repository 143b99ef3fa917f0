"""Facts from the event log of a run: orders, aggregations without arrival, and arrival rates."""

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
