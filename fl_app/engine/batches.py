"""Orders computed together: batches that follow from virtual time.

An order under way is not needed before the clock asks for its result. Until then it can wait for
others, and a worker trains all of them in one operation. That is exact, because an order's model,
data and random numbers are known when it is given.

Which orders share a batch decides the last bits of their results. So it follows from the sequence
of events alone: it is the same whatever the number of workers and their speed, and a checkpoint
holds the results of a batch that the run has begun to use.
"""

import heapq
from collections.abc import Collection, Mapping
from typing import Any

from fl_app.core.types import Order, Reply
from fl_app.engine.clock import BatchMailbox
from fl_app.engine.lookahead import READY_LIMIT, Lookahead

Batch = tuple[Order, ...]


class Batches(Lookahead):
    """A `Lookahead` whose training orders are computed in batches.

    When the clock needs an order that waits, all orders that wait are divided into batches whose
    lengths differ by at most one, those that are due first in the first batch. So several workers
    have a batch each. If more orders wait than results may lie ready, further batches are formed
    ahead. Evaluate orders are computed one by one.

    Args:
        mailbox: has the workers; its batches have two orders or more.
    """

    def __init__(self, mailbox: BatchMailbox) -> None:
        super().__init__(mailbox)
        self._together = mailbox
        self._size = mailbox.batch
        # A result of a batch stays in memory until it is due, so few batches run ahead.
        self._most = max(READY_LIMIT, 2 * mailbox.batch)
        self.ready_limit = self._most + READY_LIMIT
        self._waiting: list[tuple[float, float, int, Order]] = []  # for a batch
        self._numbers: set[int] = set()  # of those
        self._formed: dict[int, Batch] = {}  # number -> its batch, until the result is taken

    def submit(self, time: float, tie: float, order: Order) -> None:
        if order.evaluates:
            super().submit(time, tie, order)
        else:
            heapq.heappush(self._waiting, (time, tie, order.number, order))
            self._numbers.add(order.number)

    def result(self, number: int) -> Reply:
        while number in self._numbers or self._many_wait():
            self._form()
        reply = super().result(number)
        self._formed.pop(number, None)
        return reply

    def cancel(self, numbers: Collection[int]) -> None:
        waited = self._numbers.intersection(numbers)
        if waited:
            self._numbers -= waited
            self._waiting = [entry for entry in self._waiting if entry[2] not in waited]
            heapq.heapify(self._waiting)
        for number in numbers:
            self._formed.pop(number, None)
        super().cancel([number for number in numbers if number not in waited])

    def state_dict(self) -> dict[str, Any]:
        """The results of batches that are ready, and the batches that are being computed.

        The latter hold orders that were dropped meanwhile, too: without them, it would be another
        batch.
        """
        under_way = {
            id(batch): batch
            for batch in self._formed.values()
            if not any(order.number in self._ready for order in batch)
        }
        return {
            "ready": [self._ready[number] for number in self._formed if number in self._ready],
            "under_way": list(under_way.values()),
            "needed": [number for number, batch in self._formed.items() if id(batch) in under_way],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Collection[int]:
        needed = set(state.get("needed", ()))
        for reply in state.get("ready", ()):
            self._ready[reply.number] = reply
            self._formed[reply.number] = ()
        for place, batch in enumerate(state.get("under_way", ())):
            # They were formed in this sequence, and before all batches to come.
            heapq.heappush(self._pending, (-1.0, float(place), place, batch))
            for order in batch:
                if order.number in needed:
                    self._formed[order.number] = batch
                else:
                    self._cancelled.add(order.number)
        return self._formed.keys()

    def _many_wait(self) -> bool:
        """Whether a batch formed now would be as long as one formed later, and has room."""
        room = self._most - len(self._formed)
        return room >= self._size and len(self._waiting) >= self._most

    def _form(self) -> None:
        """Form batches of the orders that wait: as many as there is room for, at least one."""
        room = max(self._most - len(self._formed), self._size)
        count = min(room, len(self._waiting))
        for batches_left in range(-(-count // self._size), 0, -1):
            length = -(-count // batches_left)
            first, *others = (heapq.heappop(self._waiting) for _ in range(length))
            batch = (first[3], *(entry[3] for entry in others))
            for order in batch:
                self._formed[order.number] = batch
                self._numbers.discard(order.number)
            heapq.heappush(self._pending, (*first[:3], batch))
            count -= length

    def _push(self, orders: Batch) -> None:
        if len(orders) == 1:
            super()._push(orders)
        else:
            self._together.push_together(orders)
