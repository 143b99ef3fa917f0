"""Schedules that aggregate whenever a buffer is full."""

from collections.abc import Sequence
from dataclasses import dataclass

from fl_app.core.hyper import COUNT, bounded, one_of
from fl_app.core.pool import ClientPool
from fl_app.core.types import Rng, Updates
from fl_app.schedule.base import Ids, Schedule

MOMENTS = one_of("at_once", "after_aggregation")


@dataclass(frozen=True)
class Buffered(Schedule):
    """Keep `concurrency` clients at work; aggregate every `buffer_size` updates.

    Attributes:
        concurrency: M_c, clients at work at a time; None = every registered client.
        buffer_size: K, updates per aggregation, 1 <= K <= M_c.
        refill: when a random idle client takes the place that an arrival freed: ``"at_once"`` or
            ``"after_aggregation"``. If `concurrency` is None, every idle client starts at once;
            with ``"after_aggregation"`` a client starts after its own update is aggregated.

    Raises:
        ValueError: a bound is violated.
    """

    concurrency: int | None = 10
    buffer_size: int = bounded(10, COUNT, "the server would publish versions without updates")
    refill: str = bounded("at_once", MOMENTS, "no other moment is known")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.concurrency is None:
            return
        # After the buffer size: `synchronous` passes one number for both, and errors name that key.
        COUNT.check("algorithm.schedule.concurrency", self.concurrency, "no client would start")
        bound = f"between 1 and algorithm.schedule.concurrency={self.concurrency}"
        fits = self.buffer_size <= self.concurrency
        self._require(fits, "buffer_size", bound, "the server would wait for ever")

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        if not idle:
            return ()
        waits = buffer if self.refill == "after_aggregation" else ()
        waiting = {update.client_id for update in waits}
        occupied = len(busy) + len(waits)
        free = len(idle) if self.concurrency is None else self.concurrency - occupied
        return idle.draw(free, rng, exclude=waiting) if free > 0 else ()


def synchronous(buffer_size: int = 10) -> Buffered:
    """Rounds: K random clients start, and the server waits for K updates."""
    return Buffered(buffer_size, buffer_size, refill="after_aggregation")


def k_async(buffer_size: int = 10, concurrency: int | None = None) -> Buffered:
    """All clients, or `concurrency` of them, work; the server aggregates the first K updates.

    Then K clients start. If all clients work, they are the clients whose updates were aggregated.
    Otherwise they are drawn at random from the idle clients.
    """
    return Buffered(concurrency, buffer_size, refill="after_aggregation")


def fully_async(concurrency: int | None = 10) -> Buffered:
    """Each arrival makes a version, and its place is refilled at once."""
    return Buffered(concurrency, 1)
