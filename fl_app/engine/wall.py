"""Real time over a mailbox of real nodes."""

import heapq
import math
import time
from collections.abc import Collection, Mapping
from typing import Any

from fl_app.core.types import Order, Reply, Vector
from fl_app.engine.clock import (
    Alarm,
    Arrived,
    ClockEvent,
    Expired,
    Joined,
    Left,
    Mailbox,
    Returned,
    Stray,
)


class WallClock:
    """Real time over a mailbox of real nodes: a client is a node.

    Args:
        mailbox: reports replies and who joins and leaves.
        deadline: seconds after which an order is given up; inf = never.
    """

    def __init__(self, mailbox: Mailbox, *, deadline: float = math.inf) -> None:
        self._mailbox = mailbox
        self._deadline = deadline
        self._began = time.monotonic()
        self._orders: dict[int, Order] = {}  # with a client, in time
        self._expired: dict[int, Order] = {}  # given up, the client still out
        self._deadlines: list[tuple[float, int]] = []
        self._inbox: list[Reply | Joined | Left] = []
        self._alarm = math.inf

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def clients(self) -> Collection[int]:
        return ()

    def share(self, vector: Vector) -> Vector:
        return self._mailbox.share(vector)

    def dispatch(self, order: Order) -> None:
        self._orders[order.number] = order
        if math.isfinite(self._deadline):
            heapq.heappush(self._deadlines, (self.now + self._deadline, order.number))
        self._mailbox.push(order)

    def continue_order(self, order: Order, progress: float) -> None:
        del progress
        self._orders[order.number] = order  # its deadline stands
        self._mailbox.push(order)

    def recall(self, order: Order) -> bool:
        # NOTE: a SuperNode handles one message at a time, so no recall reaches one that trains.
        del order
        return False

    def alarm(self, at: float) -> None:
        self._alarm = at

    def snapshot(self) -> dict[str, Any]:
        return {"now": self.now}

    def restore(self, state: dict[str, Any], orders: Mapping[int, Order]) -> bool:
        # Whoever works on one of the orders answers a server that is no more.
        del orders
        self._began = time.monotonic() - state["now"]
        return False

    def next(self, until: float) -> ClockEvent | None:
        while True:
            if self._inbox:
                return self._event(self._inbox.pop(0))
            now = self.now
            if now >= self._alarm:
                self._alarm = math.inf
                return Alarm()
            while self._deadlines and self._deadlines[0][0] <= now:
                order = self._orders.pop(heapq.heappop(self._deadlines)[1], None)
                if order is not None:
                    self._expired[order.number] = order
                    return Expired(order)
            if now >= until:
                return None
            given_up = self._deadlines[0][0] if self._deadlines else math.inf
            due = min(until, self._alarm, given_up)
            self._inbox.extend(self._mailbox.pull(due - now if math.isfinite(due) else None))

    def close(self) -> None:
        self._mailbox.close()

    def _event(self, message: Reply | Joined | Left) -> ClockEvent:
        if isinstance(message, Joined):
            return message
        if isinstance(message, Left):
            lost = [o for o in self._orders.values() if o.client_id == message.client_id]
            for order in lost:
                del self._orders[order.number]
            self._expired = {
                number: order
                for number, order in self._expired.items()
                if order.client_id != message.client_id
            }
            return Left(message.client_id, tuple(lost))
        if message.number in self._orders:
            return Arrived(self._orders.pop(message.number), message)
        if message.number in self._expired:
            return Returned(self._expired.pop(message.number))
        return Stray(message.number)
