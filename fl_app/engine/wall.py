"""Real time over a mailbox of real nodes."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from fl_app.core.types import Order, Reply
from fl_app.engine.clock import (
    Alarm,
    Clock,
    ClockEvent,
    Expired,
    Joined,
    Left,
    Mailbox,
    Replied,
    Returned,
    Stray,
)


@dataclass(eq=False)
class WallClock(Clock):
    """Real time over a mailbox of real nodes: a client is a node.

    Args:
        mailbox: reports replies, and nodes that join and leave.
        deadline: seconds after which an order expires; inf = never.
        monotonic: returns real time, seconds.
    """

    mailbox: Mailbox
    _: KW_ONLY
    deadline: float = math.inf
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._began = self.monotonic()
        self._orders: dict[int, Order] = {}  # with a client, in time; oldest first
        self._expired: dict[int, Order] = {}  # expired, the client still at work
        self._inbox: list[Reply | Joined | Left] = []

    @property
    def now(self) -> float:
        return self.monotonic() - self._began

    def clients(self) -> Collection[int]:
        return ()

    def dispatch(self, order: Order) -> None:
        self._orders[order.number] = order
        self.mailbox.push(order)

    def continue_order(self, order: Order, progress: float) -> None:
        self.dispatch(order)
        # The pause may have come twice, and is answered once.
        self._inbox = [m for m in self._inbox if getattr(m, "number", None) != order.number]
        # Its deadline stands, and so does its place, which its reply had freed.
        self._orders = dict(sorted(self._orders.items(), key=lambda each: each[1].sent_at))

    def call_off_training(self) -> None:
        # No message reaches a node that trains, so its reply comes as a `Stray`.
        self._orders = {n: order for n, order in self._orders.items() if order.evaluates}

    def state_dict(self) -> dict[str, Any]:
        return {"now": self.now}

    def load_state_dict(self, state: Mapping[str, Any], orders: Mapping[int, Order]) -> bool:
        # The replies to these orders go to a server that exists no more.
        self._began = self.monotonic() - state["now"]
        return False

    def next(self, until: float, alarm: float = math.inf) -> ClockEvent | None:
        while not self._inbox:
            now, oldest = self.now, next(iter(self._orders.values()), None)
            expires = math.inf if oldest is None else oldest.sent_at + self.deadline
            if now >= alarm:
                return Alarm()
            if oldest is not None and expires <= now:
                self._expired[oldest.number] = self._orders.pop(oldest.number)
                return Expired(oldest)
            if now >= until:
                return None
            due = min(until, alarm, expires)
            self._inbox.extend(self.mailbox.pull(due - now if math.isfinite(due) else None))
        return self._event(self._inbox.pop(0))

    def _event(self, message: Reply | Joined | Left) -> ClockEvent:
        if isinstance(message, Joined):
            return message
        if isinstance(message, Left):
            lost = [o for o in self._orders.values() if o.client_id == message.client_id]
            for orders in (self._orders, self._expired):
                for order in [o for o in orders.values() if o.client_id == message.client_id]:
                    del orders[order.number]
            return replace(message, orders=tuple(lost))
        if message.number in self._orders:
            return Replied(self._orders.pop(message.number), message)
        if message.number in self._expired:
            return Returned(self._expired.pop(message.number))
        return Stray(message.number)
