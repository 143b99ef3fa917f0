"""Computes the results of orders before they are due.

The clock needs an order's result only when it is due. Until then the order can wait for others, and
a worker trains all of them in one operation. That is exact, because an order's model, data and
random numbers are known when it is given.

Which orders share a batch decides the last bits of their results. So the batches follow from the
sequence of events alone, and not from the number of workers or their speed. A checkpoint holds the
results of a batch of which the run has used some.
"""

import heapq
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from fl_app.core.types import Order, Reply
from fl_app.engine.clock import Mailbox

READY_LIMIT = 32

Batch: TypeAlias = tuple[Order, ...]
Entry: TypeAlias = tuple[float, float, int, Batch]
"""When the first order of a batch is due, that order's tie and number, and the batch."""


class Lookahead:
    """Keeps workers busy with the orders that are due next.

    Where the mailbox takes several at once, training orders wait until the clock needs one of them.
    Then all that wait are divided into batches whose lengths differ by at most one, those that are
    due first in the first batch. So several workers have a batch each. If more orders wait than
    results may lie ready, further batches are formed ahead. Evaluate orders are computed one by
    one.

    Args:
        mailbox: has the workers; any of them serves any client.

    Attributes:
        batch: largest number of orders in a batch; 1 = each is computed alone.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._push: Callable[..., None] = mailbox.push
        self.batch: int = getattr(mailbox, "batch", 1)
        # A result of a batch stays in memory until it is due, so few batches run ahead.
        self._max_results = max(READY_LIMIT, 2 * self.batch)
        self._ready_limit = READY_LIMIT + (self._max_results if self.batch > 1 else 0)
        self._waiting: list[Entry] = []  # of single orders, for a batch
        self._formed: dict[int, Batch] = {}  # number -> its batch, until the result is taken
        self._pending: list[Entry] = []  # not yet with a worker
        self._ready: dict[int, Reply] = {}
        self._under_way = 0  # with a worker
        self._cancelled: set[int] = set()  # numbers of those with a worker

    def submit(self, time: float, tie: float, order: Order) -> None:
        """Compute an order's result by a time, seconds; a smaller `tie` goes first."""
        alone = order.evaluates or self.batch == 1
        entry = (time, tie, order.number, (order,))
        heapq.heappush(self._pending if alone else self._waiting, entry)

    def result(self, number: int) -> Reply:
        """The reply of the order with this number; waits for it, and returns it once."""
        # An order that waits is due now, so it is the first of them.
        while self._waiting and (self._waiting[0][2] == number or self._can_form_ahead()):
            self._form()
        self._feed()
        if number in self._ready:
            self._gather(0.0)
        while number not in self._ready:
            self._gather(None)
        self._formed.pop(number, None)
        return self._ready.pop(number)

    def cancel(self, numbers: Collection[int]) -> None:
        """Drop orders, computed or not."""
        remaining = set(numbers)
        for heap in (self._waiting, self._pending):
            dropped = remaining & {orders[0].number for *_, orders in heap if len(orders) == 1}
            heap[:] = [e for e in heap if len(e[3]) > 1 or e[3][0].number not in dropped]
            heapq.heapify(heap)
            remaining -= dropped
        for number in numbers:
            self._formed.pop(number, None)
            if number in remaining and self._ready.pop(number, None) is None:
                self._cancelled.add(number)

    def state_dict(self) -> dict[str, Any]:
        """What cannot be computed again with equal results: batches, and what is ready of them.

        A batch that is being computed holds orders that were dropped meanwhile, too: without them,
        it would be another batch.
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
        """Restore a result of `state_dict`; returns the orders that need not be submitted."""
        needed = set(state["needed"])
        for reply in state["ready"]:
            self._ready[reply.number] = reply
            self._formed[reply.number] = ()
        for place, batch in enumerate(state["under_way"]):
            # They were formed in this sequence, before all later batches.
            heapq.heappush(self._pending, (-1.0, float(place), place, batch))
            for order in batch:
                if order.number in needed:
                    self._formed[order.number] = batch
                else:
                    self._cancelled.add(order.number)
        return self._formed.keys()

    def _can_form_ahead(self) -> bool:
        """Whether a batch formed now would be as long as one formed later, and has room."""
        room = self._max_results - len(self._formed)
        return room >= self.batch and len(self._waiting) >= self._max_results

    def _form(self) -> None:
        """Form batches of the orders that wait: as many as there is room for, at least one."""
        room = max(self._max_results - len(self._formed), self.batch)
        count = min(room, len(self._waiting))
        for batches_left in range(-(-count // self.batch), 0, -1):
            length = -(-count // batches_left)
            entries = [heapq.heappop(self._waiting) for _ in range(length)]
            batch = tuple(order for entry in entries for order in entry[3])
            self._formed |= {order.number: batch for order in batch}
            heapq.heappush(self._pending, (*entries[0][:3], batch))
            count -= length

    def _gather(self, timeout: float | None) -> None:
        for reply in self._mailbox.pull(timeout):
            if isinstance(reply, Reply):
                self._under_way -= 1
                if reply.number in self._cancelled:
                    self._cancelled.discard(reply.number)
                else:
                    self._ready[reply.number] = reply
        self._feed()

    def _feed(self) -> None:
        # A result that lies ready takes as much memory as a model. Past the limit of them only
        # the next event's order is computed, which is the first of those pending.
        while (
            self._pending
            and self._mailbox.capacity() > 0
            and (len(self._ready) < self._ready_limit or self._under_way == 0)
        ):
            batch = heapq.heappop(self._pending)[3]
            self._under_way += len(batch)
            self._push(*batch)
