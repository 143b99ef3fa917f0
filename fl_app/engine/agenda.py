"""What happens when: orders end or reach their deadline, and the schedule is asked again."""

import heapq
import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from fl_app.core.types import Order


class Kind(IntEnum):
    """What an entry of the agenda is about."""

    REPLY = 0
    DEADLINE = 1
    LATE_REPLY = 2
    EARLIEST_PAUSE = 3


class Entry(NamedTuple):
    """A moment of an order; ties are broken by a seeded random key, not by client id.

    Attributes:
        time: on the run's clock, seconds.
        tie: smaller ones come first among entries of the same time.
        number: of the work whose reply is due, unique among replies.
        kind: what happens.
        order: whose moment it is.
    """

    # A tuple, because a heap of thousands compares tuples without calling Python.
    time: float
    tie: float
    number: int
    kind: Kind
    order: Order


class Agenda:
    """The coming moments of orders, and the alarm.

    Args:
        deadline: seconds after which an order expires; inf = never.

    Attributes:
        deadline: as given.
        alarm: when the schedule wants to be asked again, seconds; inf = never.
    """

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline
        self.alarm = math.inf
        self._entries: list[Entry] = []

    @property
    def first(self) -> float:
        """When the first order's moment comes, seconds; inf = never."""
        return self._entries[0].time if self._entries else math.inf

    @property
    def first_kind(self) -> Kind:
        """What happens at the first moment, of which there must be one."""
        return self._entries[0].kind

    def add(self, entry: Entry) -> None:
        """Enter a moment."""
        heapq.heappush(self._entries, entry)

    def add_deadline(self, order: Order, tie: float = 0.0, back: float = math.inf) -> None:
        """Enter the order's deadline, if it has one, and its late reply, if it ever comes.

        Args:
            order: from now on with its client.
            tie: see `Entry`.
            back: when the late reply comes, seconds; inf = never, or unknown.
        """
        given_up = order.sent_at + self.deadline
        if math.isinf(given_up):
            return
        self.add(Entry(given_up, tie, order.number, Kind.DEADLINE, order))
        if math.isfinite(back):
            self.add(Entry(back, tie, order.number, Kind.LATE_REPLY, order))

    def pop(self) -> Entry:
        """Remove the first moment."""
        return heapq.heappop(self._entries)

    def pop_alarm(self) -> float:
        """Remove the alarm; when it was due."""
        due, self.alarm = self.alarm, math.inf
        return due

    def reply_of(self, order: Order) -> Entry | None:
        """The order's reply on the agenda; None if it is not known yet, or comes too late."""
        planned = next((entry for entry in self._entries if entry.order is order), None)
        return planned if planned is not None and planned.kind is Kind.REPLY else None

    def replace(self, entry: Entry, other: Entry) -> None:
        """Put `other` in the place of `entry`."""
        place = next(i for i, each in enumerate(self._entries) if each is entry)
        self._entries[place] = other
        heapq.heapify(self._entries)

    def call_off_training(self) -> list[Entry]:
        """Remove the moments of all orders but those to evaluate; returns them."""
        removed = [entry for entry in self._entries if not entry.order.evaluates]
        self._entries = [entry for entry in self._entries if entry.order.evaluates]
        heapq.heapify(self._entries)
        return removed

    def state_dict(self) -> dict[str, Any]:
        """The entries and the alarm; orders that await their reply in time only by number."""
        entries = [
            (*entry[:3], entry.kind.name, entry.order.number if is_computed(entry) else entry.order)
            for entry in self._entries
        ]
        return {"alarm": self.alarm, "entries": entries}

    def load_state_dict(self, state: Mapping[str, Any], orders: Mapping[int, Order]) -> list[Entry]:
        """Restore the entries and the alarm.

        Args:
            state: of `state_dict`.
            orders: those that await their reply, by number.

        Returns:
            The entries for which something is computed.
        """
        self.alarm = state["alarm"]
        self._entries = [  # which is a heap already
            Entry(time, tie, number, Kind[kind], orders[order] if isinstance(order, int) else order)
            for time, tie, number, kind, order in state["entries"]
        ]
        return [entry for entry in self._entries if is_computed(entry)]


def is_computed(entry: Entry) -> bool:
    """Whether the entry needs the order's result."""
    return entry.kind in (Kind.REPLY, Kind.EARLIEST_PAUSE)
