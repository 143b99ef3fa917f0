"""Real time over a mailbox of real nodes."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from fl_app.core.types import Order, Reply, Vector
from fl_app.engine.agenda import Agenda
from fl_app.engine.clock import (
    Alarm,
    ClockEvent,
    Expired,
    Joined,
    Left,
    Mailbox,
    RememberingMailbox,
    Replied,
    Returned,
    Stray,
)
from fl_app.engine.server import Work


class WallClock:
    """Real time over a mailbox of real nodes: a client is a node.

    Args:
        mailbox: reports replies, and nodes that join and leave.
        deadline: seconds after which an order expires; inf = never.
        monotonic: tells real time.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        deadline: float = math.inf,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mailbox = mailbox
        self._monotonic = monotonic
        self._began = monotonic()
        self._orders: dict[int, Order] = {}  # with a client, in time
        self._expired: dict[int, Order] = {}  # expired, the client still at work
        self._agenda = Agenda(deadline)
        self._inbox: list[Reply | Joined | Left] = []

    @property
    def now(self) -> float:
        return self._monotonic() - self._began

    def clients(self) -> Collection[int]:
        return ()

    def share(self, vector: Vector) -> Vector:
        return self._mailbox.share(vector)

    def work(self, what: Work) -> None:
        del what  # it takes the time that it takes

    @property
    def busy(self) -> None:
        return None

    def dispatch(self, order: Order) -> None:
        self._orders[order.number] = order
        self._agenda.add_deadline(order)
        self._mailbox.push(order)

    def continue_order(self, order: Order, progress: float) -> None:
        del progress
        self._orders[order.number] = order  # its deadline stands
        self._mailbox.push(order)

    def call_off_training(self) -> None:
        # No message reaches a node that trains, so its reply comes as a `Stray`.
        self._orders = {n: order for n, order in self._orders.items() if order.evaluates}

    def recall(self, order: Order) -> bool:
        # NOTE: a SuperNode handles one message at a time, so no recall reaches one that trains.
        del order
        return False

    def alarm(self, at: float) -> None:
        self._agenda.alarm = at

    def totals(self) -> Mapping[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        kept = self._mailbox.state_dict() if isinstance(self._mailbox, RememberingMailbox) else {}
        return {"now": self.now, **({"mailbox": kept} if kept else {})}

    def load_state_dict(self, state: Mapping[str, Any], orders: Mapping[int, Order]) -> bool:
        # The replies to these orders go to a server that exists no more.
        del orders
        self._began = self._monotonic() - state["now"]
        if isinstance(self._mailbox, RememberingMailbox):
            self._mailbox.load_state_dict(state.get("mailbox", {}))
        return False

    def next(self, until: float) -> ClockEvent | None:
        while True:
            if self._inbox:
                return self._event(self._inbox.pop(0))
            now = self.now
            if now >= self._agenda.alarm:
                self._agenda.pop_alarm()
                return Alarm()
            while self._agenda.first <= now:
                order = self._orders.pop(self._agenda.pop().number, None)
                if order is not None:
                    self._expired[order.number] = order
                    return Expired(order)
            if now >= until:
                return None
            due = min(until, self._agenda.alarm, self._agenda.first)
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
            return replace(message, orders=tuple(lost))
        if message.number in self._orders:
            return Replied(self._orders.pop(message.number), message)
        if message.number in self._expired:
            return Returned(self._expired.pop(message.number), message.supplied)
        return Stray(message.number)
