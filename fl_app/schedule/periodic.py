"""Clients start by the clock: FedASMU's schedule."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fl_app.core.hyper import COUNT, POSITIVE, bounded
from fl_app.core.pool import ClientPool
from fl_app.core.types import Rng, Updates
from fl_app.schedule.base import Ids, Schedule


@dataclass(eq=False)
class Periodic(Schedule):
    """Every `period` seconds some idle clients start; every arrival makes a version.

    FedASMU's trigger (Liu et al. 2024, Algorithm 1 lines 1-6): while fewer than `concurrency`
    clients are at work, up to `burst` random idle ones start.

    Args:
        period: seconds between two starts, > 0; the first is at second 0.
        burst: clients that start at a time, >= 1.
        concurrency: clients at work at a time, >= 1.

    Raises:
        ValueError: a value is out of its bounds.
    """

    period: float = bounded(5.0, POSITIVE, "clients would start for ever at one moment")
    burst: int = bounded(1, COUNT, "no client would ever start")
    concurrency: int = bounded(10, COUNT, "no client would ever start")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._due = 0.0
        self._is_due = False

    def wake(self, now: float) -> float:
        """The next multiple of the period."""
        if now >= self._due:
            self._is_due = True
            tick = math.floor(now / self.period) + 1
            if tick * self.period <= now:  # the quotient was rounded down
                tick += 1
            self._due = tick * self.period
        return self._due

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        free = min(self.burst, self.concurrency - len(busy), len(idle))
        if not self._is_due:
            return ()
        self._is_due = False
        return idle.draw(free, rng) if free > 0 else ()
