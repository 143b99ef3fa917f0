"""Time, virtual or real: what happens next.

The engine dispatches orders and asks a clock for the next event. The virtual clock knows an order's
duration when the order is dispatched. So the seed decides what happens, and the host's speed never
does. The wall clock takes events from the mailbox.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from fl_app.core.types import Order, Parts, Reply, Vector
from fl_app.core.vector import read_only
from fl_app.engine.server import Work

VANISHED = "node vanished"


@dataclass(frozen=True, slots=True)
class Replied:
    """The `reply` to an `order` came in time. The client has finished, failed or paused."""

    order: Order
    reply: Reply


@dataclass(frozen=True, slots=True)
class Expired:
    """The deadline of an `order` passed. Its place is free; its client is still at work."""

    order: Order


@dataclass(frozen=True, slots=True)
class Returned:
    """The client of an expired `order` is back. Its reply is dropped."""

    order: Order


@dataclass(frozen=True, slots=True)
class Stray:
    """A reply to an order that was answered before, or of an unknown `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The client `client_id` can receive orders from now on."""

    client_id: int


@dataclass(frozen=True, slots=True)
class Left:
    """The client `client_id` is gone for this `reason`, and so are its `orders`.

    `traceback` is as of `Reply`, if an error in its code is the reason.
    """

    client_id: int
    orders: tuple[Order, ...] = ()
    reason: str = VANISHED
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Alarm:
    """It is the time at which the schedule is to be asked again (`Schedule.wake`)."""


ClockEvent: TypeAlias = Replied | Expired | Returned | Stray | Joined | Left | Alarm


class Clock(Protocol):
    """Gives the engine the next event.

    Clocks subclass it to inherit what real time has.

    Attributes:
        mailbox: carries orders out.
    """

    mailbox: "Mailbox"

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    def clients(self) -> Collection[int]:
        """Clients known at the start; later ones come as `Joined`."""

    def share(self, vector: Vector) -> Vector:
        """The read-only form in which clients can receive a new model version."""
        return self.mailbox.share(vector)

    def work(self, what: Work) -> None:
        """Let time pass for a piece of the server's own work, which is done now."""
        return  # on a real clock it takes the time that it takes

    def dispatch(self, order: Order) -> Parts | None:
        """Give an order to its client; returns the parts for the log, None = none."""

    def continue_order(self, order: Order, progress: float) -> None:
        """Let a client that paused after `progress` of its training continue, as `order` says."""

    def call_off_training(self) -> None:
        """Forget all orders but those to evaluate; called when training has ended."""

    def recall(self, order: Order) -> bool:
        """Ask for the result at the end of the current local epoch; false if it is too late."""
        # NOTE: a SuperNode handles one message at a time, so no recall reaches one that trains.
        return False

    def state_dict(self) -> dict[str, Any]:
        """The state between two events, as plain data and arrays."""

    def load_state_dict(self, state: Mapping[str, Any], orders: Mapping[int, Order]) -> bool:
        """Restore a state; returns whether its orders are in flight again.

        Args:
            state: a result of `state_dict`.
            orders: the orders in flight in that state by number.
        """

    def next(self, until: float, alarm: float = math.inf) -> ClockEvent | None:
        """The next event, or None when none happens before `until` seconds (or ever).

        It is an `Alarm` if nothing else happens until `alarm` seconds.
        """

    def close(self) -> None:
        """Stop all work at once, without waiting for it."""
        self.mailbox.close()


class Mailbox(Protocol):
    """Pushes orders to workers or nodes and pulls their replies; it does not know the time.

    Mailboxes subclass it to inherit `share`. One with an attribute `batch` above 1 has
    ``push(*orders)``, and gets up to so many training orders at once, to be computed together.
    """

    def share(self, vector: Vector) -> Vector:
        """As `Clock.share`."""
        return read_only(vector)

    def capacity(self) -> int:
        """How many more orders it accepts now."""

    def push(self, order: Order) -> None:
        """Accept an order; `capacity` must be above 0."""

    def pull(self, timeout: float | None) -> Iterable[Reply | Joined | Left]:
        """Replies that have arrived; waits up to `timeout` seconds for one, None = for ever."""

    def close(self) -> None:
        """End workers and threads at once."""
