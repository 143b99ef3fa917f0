"""Time, virtual or real: what happens next.

The engine hands out orders and asks a clock for the next event. Under the virtual clock an order's
duration is known when it is dispatched, so the seed decides what happens and the host's speed never
does. Under the wall clock events are what the mailbox brings.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from fl_app.core.types import Order, Reply, Vector

NO_VECTOR: Vector = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Arrived:
    """An order's reply came in time; the client may have paused and wait for an answer to it."""

    order: Order
    reply: Reply


@dataclass(frozen=True, slots=True)
class Expired:
    """An order's deadline passed; its place is free, its client is still out."""

    order: Order


@dataclass(frozen=True, slots=True)
class Returned:
    """The client of an expired order is back; what it brings is dropped."""

    order: Order


@dataclass(frozen=True, slots=True)
class Stray:
    """A reply to an order that was answered before, or never given."""

    number: int


@dataclass(frozen=True, slots=True)
class Joined:
    """A client can be given orders from now on."""

    client_id: int


@dataclass(frozen=True, slots=True)
class Left:
    """A client is gone; so are the orders it had."""

    client_id: int
    orders: tuple[Order, ...] = ()
    reason: str = "node vanished"


@dataclass(frozen=True, slots=True)
class Alarm:
    """The time has come that was asked for."""


ClockEvent: TypeAlias = Arrived | Expired | Returned | Stray | Joined | Left | Alarm


class Clock(Protocol):
    """Tells the engine what happens next."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        ...

    def clients(self) -> Collection[int]:
        """Clients known at the start; later ones come as `Joined`."""
        ...

    def share(self, vector: Vector) -> Vector:
        """The read-only form of a new model version in which clients can be given it."""
        ...

    def dispatch(self, order: Order) -> None:
        """Give an order to its client."""
        ...

    def continue_order(self, order: Order, progress: float) -> None:
        """Let a client that paused after `progress` of its training go on, as `order` says."""
        ...

    def recall(self, order: Order) -> bool:
        """Ask for the result at the end of the local epoch under way; whether that was possible."""
        ...

    def alarm(self, at: float) -> None:
        """Ask for an `Alarm` at this time at the latest, in place of the one asked for before."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs, between two events: plain data and arrays."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], orders: Mapping[int, Order]) -> bool:
        """Restore a state; whether the orders under way then are under way again.

        Args:
            state: of `state_dict`.
            orders: those under way then by their numbers, with models that were shared anew.
        """
        ...

    def next(self, until: float) -> ClockEvent | None:
        """The next event, or None when none happens before `until` seconds (or ever)."""
        ...

    def close(self) -> None:
        """Stop whatever is under way; nothing is waited for."""
        ...


class Mailbox(Protocol):
    """Pushes orders to workers or nodes and pulls their replies; it does not know the time."""

    def share(self, vector: Vector) -> Vector:
        """As `Clock.share`."""
        ...

    def capacity(self) -> int:
        """How many more orders it takes now."""
        ...

    def push(self, order: Order) -> None:
        """Accept an order; `capacity` must be above 0."""
        ...

    def pull(self, timeout: float | None) -> Iterable[Reply | Joined | Left]:
        """Replies that are in; waits for one up to `timeout` seconds, None = for ever."""
        ...

    def close(self) -> None:
        """End workers and threads at once."""
        ...
