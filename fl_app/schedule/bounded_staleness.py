"""Buffered aggregation that waits for clients that are too far behind: PORT's schedule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fl_app.core.hyper import at_least, bounded
from fl_app.core.pool import ClientPool
from fl_app.core.types import Order, Rng, Updates
from fl_app.schedule.base import Ids, Schedule
from fl_app.schedule.buffered import Buffered


@dataclass(eq=False)
class BoundedStaleness(Schedule):
    """Buffered aggregation that never leaves a client behind by more than a bound.

    PORT's schedule (Su and Li 2022): K updates make a version, freed places are refilled at once.
    A client at work whose model is that old is recalled: it sends what it has at the end of its
    local epoch. No version is made without it.

    Args:
        concurrency: clients at work at a time.
        buffer_size: K, 1 <= K <= concurrency.
        staleness_bound: versions, >= 1.

    Raises:
        ValueError: a value is out of its bounds.
    """

    concurrency: int | None = 10
    buffer_size: int = 10
    staleness_bound: int = bounded(10, at_least(1), "every client would be too old at once")

    transient = ("_buffered",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._buffered = Buffered(self.concurrency, self.buffer_size)
        self._awaited: set[int] = set()  # at work, and too old at the last aggregation

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        # A client that left or failed is no longer awaited.
        self._awaited.intersection_update(busy)
        return self._buffered.start(idle, busy, buffer, rng)

    def take(self, buffer: Updates) -> Updates:
        """The whole buffer once it holds K updates and no awaited client is still at work."""
        arrived = {update.client_id for update in buffer}
        if self._awaited - arrived:
            return ()
        return buffer if self._buffered.take(buffer) else ()

    def recall(self, busy: Mapping[int, Order], version: int) -> Sequence[int]:
        bound = self.staleness_bound
        late = [c for c, order in busy.items() if version - order.base_version >= bound]
        self._awaited = set(late)
        return late
