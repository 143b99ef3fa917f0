"""What is being computed: results of orders, ahead of the moment at which they are due."""

import heapq
from collections.abc import Collection, Mapping
from typing import Any

from fl_app.core.types import Order, Reply
from fl_app.engine.clock import Mailbox

READY_LIMIT = 32


class Lookahead:
    """Keeps workers busy with the orders that are due next.

    Args:
        mailbox: has the workers; any of them serves any client.
    """

    ready_limit = READY_LIMIT

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        # Not yet with a worker: when the first of some orders is due, and the orders.
        self._pending: list[tuple[float, float, int, tuple[Order, ...]]] = []
        self._ready: dict[int, Reply] = {}
        self._under_way = 0  # with a worker
        self._cancelled: set[int] = set()  # numbers of those with a worker

    def submit(self, time: float, tie: float, order: Order) -> None:
        """Compute an order's result by a time, seconds; a smaller `tie` goes first."""
        heapq.heappush(self._pending, (time, tie, order.number, (order,)))

    def result(self, number: int) -> Reply:
        """The reply of the order with this number; waits for it, and returns it once."""
        self._feed()
        if number in self._ready:
            self._gather(0.0)
        while number not in self._ready:
            self._gather(None)
        return self._ready.pop(number)

    def cancel(self, numbers: Collection[int]) -> None:
        """Drop orders, computed or not."""
        alone = {entry[2] for entry in self._pending if len(entry[3]) == 1}.intersection(numbers)
        if alone:
            self._pending = [entry for entry in self._pending if entry[2] not in alone]
            heapq.heapify(self._pending)
        for number in numbers:
            if number not in alone and self._ready.pop(number, None) is None:
                self._cancelled.add(number)

    def state_dict(self) -> dict[str, Any]:
        """What cannot be computed again with equal results, for `fl_app.core.snapshot`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> Collection[int]:
        """Restore a result of `state_dict`; returns the orders that need not be submitted."""
        del state
        return ()

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
            and (len(self._ready) < self.ready_limit or self._under_way == 0)
        ):
            orders = heapq.heappop(self._pending)[3]
            self._under_way += len(orders)
            self._push(orders)

    def _push(self, orders: tuple[Order, ...]) -> None:
        (order,) = orders
        self._mailbox.push(order)
