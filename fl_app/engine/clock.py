"""Time, virtual or real: what happens next.

The engine hands out orders and asks a clock for the next event. Under the virtual clock an order's
duration is known when it is dispatched, so the seed decides what happens and the host's speed never
does. Under the wall clock events are what the mailbox brings.
"""

import heapq
import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from fl_app.core.types import NO_EXTRA, Order, Reply, Vector
from fl_app.engine.presence import Availability, Presence

READY_LIMIT = 32
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

    def resume(self, order: Order, progress: float) -> None:
        """Answer a client that paused after `progress` of its training: `order` says how."""
        ...

    def hurry(self, order: Order) -> bool:
        """Ask for the result at the end of the local epoch under way; whether that was possible."""
        ...

    def alarm(self, at: float) -> None:
        """Ask for an `Alarm` at this time at the latest, in place of the one asked for before."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """What `restore` needs, between two events; see `fl_app.core.snapshot`."""
        ...

    def restore(self, state: dict[str, Any], orders: Mapping[int, Order]) -> bool:
        """Be as when `state` was taken; whether the orders under way then are so again.

        Args:
            state: of `snapshot`.
            orders: by their numbers, those under way, with models that were shared anew.
        """
        ...

    def next(self, until: float) -> ClockEvent | None:
        """The next event, or None when none happens before `until` seconds (or ever)."""
        ...

    def close(self) -> None:
        """Stop whatever is under way; nothing is waited for."""
        ...


class Mailbox(Protocol):
    """Pushes orders to whoever trains and pulls their replies; knows no time but patience."""

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


class Parts(NamedTuple):
    """The seconds of an order."""

    download: float
    training: float
    upload: float


class Devices(Protocol):
    """How long the orders of each client take (`fl_app.devices`)."""

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        """Virtual seconds of the client's order number `sequence` given at `now`; inf = never."""
        ...

    def parts(self, client_id: int, sequence: int, now: float) -> Parts:
        """What these seconds are made of."""
        ...


class _Kind(IntEnum):
    ARRIVAL = 0
    EXPIRY = 1
    RETURN = 2
    PAUSE_AT_THE_EARLIEST = 3


COMPUTED = (_Kind.ARRIVAL, _Kind.PAUSE_AT_THE_EARLIEST)


class _Entry(NamedTuple):
    """A place in virtual time; ties are broken by a seeded random key, not by client id.

    A tuple, because a heap of thousands compares quickly only what it can compare without Python.
    """

    time: float
    tie: float
    number: int
    kind: _Kind
    order: Order


class VirtualClock:
    """Discrete-event time over a mailbox whose workers run ahead along the event order.

    Work is done lazily: an order waits until it is among the next to end, so an order under way
    costs a reference to its model version and no copy.

    Args:
        mailbox: does the work; any of its workers serves any client.
        devices: the duration of every order.
        num_clients: clients are 0..num_clients-1.
        deadline: seconds after which an order is given up; inf = never.
        seed: of the tie-breaking keys.
        availability: when clients come and go; None = all are always online. Who goes offline
            loses its order.
        epochs: equal parts of an order's training, after which a client can pause or be asked for
            what it has.
        counts_epochs: whether an order that says ``local_epochs`` takes as much longer or shorter;
            not where training is counted in steps.
        pauses: whether clients may pause. When, they decide themselves, so an order is computed in
            time for its first epoch's end.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        devices: Devices,
        num_clients: int,
        *,
        deadline: float = math.inf,
        seed: int = 0,
        availability: Availability | None = None,
        epochs: int = 1,
        counts_epochs: bool = False,
        pauses: bool = False,
    ) -> None:
        self._now = 0.0
        self._mailbox = mailbox
        self._devices = devices
        self._num_clients = num_clients
        self._deadline = deadline
        self._ties = np.random.default_rng((seed, 0x71E5))
        self._events: list[_Entry] = []
        self._pending: list[_Entry] = []  # accepted, not yet with a worker
        self._ready: dict[int, Reply] = {}  # done ahead of their time
        self._under_way = 0  # with a worker
        self._presence: Presence | None = None
        if availability is not None:
            self._presence = Presence(availability, num_clients)
        self._lost: dict[int, Order] = {}  # client -> its order, which it leaves before the end
        self._epochs = epochs
        self._counts_epochs = counts_epochs
        self._pauses = pauses and epochs > 1
        self._held: dict[int, Reply] = {}  # computed early, to see whether the client pauses
        self._shortened: dict[int, Order] = {}  # by number with a worker, asked for early
        self._dropped: set[int] = set()  # numbers with a worker that nobody asks for any longer
        self._alarm = math.inf
        self._in_vain = False  # the last alarm came with nothing under way and brought no order

    @property
    def now(self) -> float:
        return self._now

    def clients(self) -> Collection[int]:
        return self._presence.online if self._presence else range(self._num_clients)

    def share(self, vector: Vector) -> Vector:
        return self._mailbox.share(vector)

    def dispatch(self, order: Order) -> None:
        self._in_vain = False
        seconds = self._devices.seconds(order.client_id, order.sequence, self.now)
        if self._counts_epochs and "local_epochs" in order.config:
            seconds = sum(self._parts(order))
        tie = self._ties.random()
        if self._pauses:
            download, training, _ = self._parts(order)
            pause = self._now + download + training / self._epochs
            self._plan(order, self._now + seconds, tie, first=pause)
        else:
            self._plan(order, self._now + seconds, tie)

    def resume(self, order: Order, progress: float) -> None:
        # The rest of the training, after one more download if there is a newer model.
        download, training, upload = self._parts(order)
        fetch = download if order.vector.size else 0.0
        end = self._now + fetch + (1.0 - progress) * training + upload
        self._plan(order, end, self._ties.random())

    def hurry(self, order: Order) -> bool:
        download, training, upload = self._parts(order)
        began = order.sent_at + download
        epoch = training / self._epochs
        done = max(1, math.ceil((self._now - began) / epoch)) if epoch > 0 else self._epochs
        planned = next((e for e in self._events if e.order is order), None)
        if planned is None or planned.kind is not _Kind.ARRIVAL or done >= self._epochs:
            return False
        # What was or is being computed is the whole order, so it is computed anew, and shorter.
        number = planned.number
        held = self._held.get(number)
        if held is not None and held.upload is not None and not held.upload.done:
            return False  # it pauses first
        self._events.remove(planned)
        heapq.heapify(self._events)
        if planned in self._pending:
            self._pending.remove(planned)
            heapq.heapify(self._pending)
        elif self._ready.pop(number, None) is None and self._held.pop(number, None) is None:
            self._dropped.add(number)
        config = {**order.config, "local_epochs": done}
        shorter = replace(order, number=-1 - number, config=config)
        self._shortened[-1 - number] = shorter
        end = began + done * epoch + upload
        entry = _Entry(end, planned.tie, -1 - number, _Kind.ARRIVAL, order)
        heapq.heappush(self._events, entry)
        heapq.heappush(self._pending, entry._replace(order=shorter))
        return True

    def alarm(self, at: float) -> None:
        self._alarm = at

    def snapshot(self) -> dict[str, Any]:
        presence = self._presence
        return {
            "now": self._now,
            "ties": self._ties,
            "events": self._events,
            "shortened": self._shortened,
            "presence": None if presence is None else presence.snapshot(),
            "lost": self._lost,
            "held": self._held,
            "alarm": self._alarm,
        }

    def restore(self, state: dict[str, Any], orders: Mapping[int, Order]) -> bool:
        self._now, self._ties, self._alarm = state["now"], state["ties"], state["alarm"]
        self._lost, self._held = state["lost"], state["held"]
        if self._presence is not None:
            self._presence.restore(state["presence"])
        # What was computed ahead of its time is computed again.
        for entry in state["events"]:
            order = orders.get(entry.order.number, entry.order)
            entry = entry._replace(order=order)
            self._events.append(entry)
            if entry.kind in COMPUTED and entry.number not in self._held:
                shorter = state["shortened"].get(entry.number)
                if shorter is not None:
                    shorter = replace(shorter, vector=order.vector, extra=order.extra)
                    self._shortened[entry.number] = shorter
                self._pending.append(entry._replace(order=shorter or order))
        heapq.heapify(self._pending)  # the events are a heap already
        return True

    def next(self, until: float) -> ClockEvent | None:
        while True:
            first = self._events[0].time if self._events else math.inf
            due = self._presence.due if self._presence else math.inf
            if self._presence and due < first and due <= min(until, self._alarm):
                return self._come_or_go(self._presence)
            if self._alarm < first and self._alarm <= until:
                if math.isinf(min(first, due)):
                    if self._in_vain:
                        return None
                    self._in_vain = True
                self._now, self._alarm = max(self._now, self._alarm), math.inf
                return Alarm()
            if first > until or not self._events:
                if math.isfinite(until) and (self._events or self._presence):
                    self._now = max(self._now, until)
                return None
            entry = heapq.heappop(self._events)
            self._now = entry.time
            match entry.kind:
                case _Kind.EXPIRY:
                    return Expired(entry.order)
                case _Kind.RETURN:
                    return Returned(entry.order)
                case _Kind.ARRIVAL:
                    self._shortened.pop(entry.number, None)
                    return Arrived(entry.order, self._collect(entry.number))
            self._see_whether_it_pauses(entry)

    def close(self) -> None:
        self._mailbox.close()

    def _parts(self, order: Order) -> Parts:
        parts = self._devices.parts(order.client_id, order.sequence, order.sent_at)
        if self._counts_epochs and "local_epochs" in order.config:
            share = int(order.config["local_epochs"]) / self._epochs
            return parts._replace(training=share * parts.training)
        return parts

    def _plan(self, order: Order, end: float, tie: float, first: float = math.inf) -> None:
        """Put an order's end on the agenda: its own, its deadline's, or that of its client's stay.

        Args:
            order: from now on with its client.
            end: when its update arrives, if nothing comes between.
            tie: key among events of the same time.
            first: when the client may pause at the earliest.
        """
        given_up = order.sent_at + self._deadline
        leaves = self._presence.until(order.client_id) if self._presence else math.inf
        if math.isfinite(end) and end <= min(given_up, leaves):
            kind = _Kind.PAUSE_AT_THE_EARLIEST if first < end else _Kind.ARRIVAL
            entry = _Entry(min(first, end), tie, order.number, kind, order)
            heapq.heappush(self._events, entry)
            heapq.heappush(self._pending, entry)
            return
        # It is never computed, so it must not keep vectors alive either.
        order = replace(order, vector=NO_VECTOR, extra=NO_EXTRA)
        if leaves < given_up:
            self._lost[order.client_id] = order
            return
        if math.isinf(given_up):
            return  # it never ends, and nobody minds
        late = _Entry(given_up, tie, order.number, _Kind.EXPIRY, order)
        heapq.heappush(self._events, late)
        if math.isfinite(end) and end <= leaves:
            back = _Entry(end, tie, order.number, _Kind.RETURN, order)
            heapq.heappush(self._events, back)

    def _see_whether_it_pauses(self, entry: _Entry) -> None:
        """Put on the agenda when the reply comes that was computed early."""
        order = entry.order
        reply = self._collect(entry.number)
        download, training, upload = self._parts(order)
        share = 1.0
        if reply.upload is not None and not reply.upload.done:
            share, upload = reply.upload.progress, 0.0
        self._held[entry.number] = reply
        at = max(order.sent_at + download + share * training + upload, self._now)
        heapq.heappush(self._events, entry._replace(time=at, kind=_Kind.ARRIVAL))

    def _come_or_go(self, presence: Presence) -> Joined | Left:
        self._now = presence.due
        client_id, comes = presence.change()
        if comes:
            return Joined(client_id)
        lost = self._lost.pop(client_id, None)
        return Left(client_id, () if lost is None else (lost,), "went offline")

    def _collect(self, number: int) -> Reply:
        """The reply of one order; keeps the workers busy with the orders that end next."""
        if number in self._held:
            return self._held.pop(number)
        self._feed()
        if number in self._ready:
            self._gather(0.0)
        while number not in self._ready:
            self._gather(None)
        return self._ready.pop(number)

    def _gather(self, timeout: float | None) -> None:
        for reply in self._mailbox.pull(timeout):
            if isinstance(reply, Reply):
                self._under_way -= 1
                if reply.number in self._dropped:
                    self._dropped.discard(reply.number)
                else:
                    self._ready[reply.number] = reply
        self._feed()

    def _feed(self) -> None:
        # A result that lies ready takes as much memory as a model. Past READY_LIMIT of them only
        # the next event's order is computed, which is the first of those pending.
        while (
            self._pending
            and self._mailbox.capacity() > 0
            and (len(self._ready) < READY_LIMIT or self._under_way == 0)
        ):
            self._under_way += 1
            self._mailbox.push(heapq.heappop(self._pending).order)


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

    def resume(self, order: Order, progress: float) -> None:
        del progress
        self._orders[order.number] = order  # its deadline stands
        self._mailbox.push(order)

    def hurry(self, order: Order) -> bool:
        # NOTE: a SuperNode handles one message at a time, so no notice reaches one that trains.
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
