"""Which clients are online in virtual time, and when that changes next."""

import heapq
import math
from collections.abc import Collection
from typing import Protocol

from fl_app.core.errors import require
from fl_app.core.snapshot import Remembers


class Availability(Protocol):
    """Clients come and go in stays, online and offline by turns (`fl_app.devices.fleet.Churn`)."""

    def starts_online(self, client_id: int) -> bool:
        """Whether the client is online at second 0."""

    def stay(self, client_id: int, number: int) -> float:
        """Seconds of the client's stay `number` >= 0, > 0; inf = for ever."""


class Presence(Remembers):
    """The stays of all clients, in the order in which they end.

    Args:
        availability: how long stays are.
        num_clients: clients are 0..num_clients-1.
    """

    transient = ("_availability",)

    def __init__(self, availability: Availability, num_clients: int) -> None:
        self._availability = availability
        self._numbers = [-1] * num_clients  # of the present stay
        self._until = [0.0] * num_clients  # when it ends
        self._ends: list[tuple[float, int]] = []
        # Ids in ascending order, as a pool of clients keeps the order in which they came.
        self._online = dict.fromkeys(filter(availability.starts_online, range(num_clients)))
        for client_id in range(num_clients):
            self._next_stay(client_id)

    @property
    def online(self) -> Collection[int]:
        """Clients that are online now."""
        return self._online.keys()

    @property
    def due(self) -> float:
        """When a client next comes or goes, seconds; inf = never."""
        return self._ends[0][0] if self._ends else math.inf

    def until(self, client_id: int) -> float:
        """When the client's present stay ends, seconds."""
        return self._until[client_id]

    def skip_absences(self, client_id: int, now: float) -> None:
        """Forget a client's absences that ended by `now`, seconds, before anyone noticed them."""
        while (left := self._until[client_id]) <= now:
            number = self._numbers[client_id] + 1
            back = left + self._availability.stay(client_id, number)
            if back > now:  # it is still away
                return
            self._ends.remove((left, client_id))
            heapq.heapify(self._ends)
            self._until[client_id], self._numbers[client_id] = back, number
            self._next_stay(client_id)

    def change(self) -> tuple[int, bool]:
        """End the first stay: the client, and whether it is online now."""
        _, client_id = heapq.heappop(self._ends)
        joins = client_id not in self._online
        if joins:
            self._online[client_id] = None
        else:
            del self._online[client_id]
        self._next_stay(client_id)
        return client_id, joins

    def _next_stay(self, client_id: int) -> None:
        self._numbers[client_id] += 1
        stay = self._availability.stay(client_id, self._numbers[client_id])
        require(stay > 0, "devices.availability", stay, "stays above 0", "time would stand still")
        self._until[client_id] += stay
        if math.isfinite(self._until[client_id]):
            heapq.heappush(self._ends, (self._until[client_id], client_id))
