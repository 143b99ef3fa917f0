"""Buffered aggregation that waits for clients that are too far behind: PORT's schedule."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fl_app.core.errors import require_at_least
from fl_app.core.pool import ClientPool
from fl_app.core.types import Order, Update
from fl_app.schedule.base import Schedule
from fl_app.schedule.buffered import Buffered


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

    def __init__(
        self, concurrency: int | None = 10, buffer_size: int = 10, staleness_bound: int = 10
    ) -> None:
        require_at_least(
            "algorithm.schedule.staleness_bound",
            staleness_bound,
            1,
            "every client would be too old at once",
        )
        self._buffered = Buffered(concurrency, buffer_size)
        self.staleness_bound = staleness_bound
        self._awaited: set[int] = set()  # at work, and too old at the last aggregation

    @property
    def buffer_size(self) -> int:
        return self._buffered.buffer_size

    def start(
        self,
        idle: ClientPool,
        busy: Collection[int],
        buffer: Sequence[Update],
        rng: np.random.Generator,
    ) -> Sequence[int]:
        # A client that left or failed is no longer awaited.
        self._awaited.intersection_update(busy)
        return self._buffered.start(idle, busy, buffer, rng)

    def take(self, buffer: Sequence[Update]) -> Sequence[Update]:
        """The whole buffer once it holds K updates and no awaited client is still at work."""
        here = {update.client_id for update in buffer}
        if self._awaited - here:
            return ()
        return buffer if self._buffered.take(buffer) else ()

    def recall(self, busy: Mapping[int, Order], version: int) -> Sequence[int]:
        late = [
            client_id
            for client_id, order in busy.items()
            if version - order.base_version >= self.staleness_bound
        ]
        self._awaited = set(late)
        return late

    def validate_population(self, num_clients: int) -> None:
        self._buffered.validate_population(num_clients)

    def state_dict(self) -> dict[str, Any]:
        return {"awaited": self._awaited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._awaited = set(state["awaited"])
