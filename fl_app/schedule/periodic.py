"""Clients start by the clock: FedASMU's schedule."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fl_app.core.errors import require, require_count, require_positive
from fl_app.core.pool import ClientPool
from fl_app.core.types import Update
from fl_app.schedule.base import Schedule


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

    def __init__(self, period: float = 5.0, burst: int = 1, concurrency: int = 10) -> None:
        require_positive(
            "algorithm.schedule.period", period, "clients would start for ever at one moment"
        )
        require_count("algorithm.schedule.burst", burst, "no client would ever start")
        require_count("algorithm.schedule.concurrency", concurrency, "no client would ever start")
        self.period = period
        self.burst = burst
        self.concurrency = concurrency
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

    def start(
        self,
        idle: ClientPool,
        busy: Collection[int],
        buffer: Sequence[Update],
        rng: np.random.Generator,
    ) -> Sequence[int]:
        del buffer
        free = min(self.burst, self.concurrency - len(busy), len(idle))
        if not self._is_due:
            return ()
        self._is_due = False
        return idle.draw(free, rng) if free > 0 else ()

    def take(self, buffer: Sequence[Update]) -> Sequence[Update]:
        return buffer[:1]

    def validate_population(self, num_clients: int) -> None:
        require(
            self.concurrency <= num_clients,
            "algorithm.schedule.concurrency",
            self.concurrency,
            f"at most num_clients={num_clients}",
            "so many clients can never be at work",
        )

    def state_dict(self) -> dict[str, Any]:
        return {"due": self._due, "is_due": self._is_due}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._due, self._is_due = state["due"], state["is_due"]
