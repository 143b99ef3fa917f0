"""Virtual time: the seed decides what happens, and the host's speed never does."""

import heapq
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from fl_app.core.types import NO_EXTRA, Devices, Order, Parts, Reply, Vector
from fl_app.engine.clock import (
    NO_VECTOR,
    Alarm,
    Arrived,
    ClockEvent,
    Expired,
    Joined,
    Left,
    Mailbox,
    Returned,
)
from fl_app.engine.presence import Availability, Presence

READY_LIMIT = 32


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
        self._parts: dict[int, Parts] = {}  # of every client's order
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
        parts = self._devices.parts(order.client_id, order.sequence, self._now)
        seconds = parts.seconds
        if self._counts_epochs and "local_epochs" in order.config:
            share = int(order.config["local_epochs"]) / self._epochs
            parts = parts._replace(training=share * parts.training)
            seconds = sum(parts)  # not `seconds`, whose last bit may differ
        self._parts[order.client_id] = parts
        pause = math.inf
        if self._pauses:
            pause = self._now + parts.download + parts.training / self._epochs
        self._plan(order, self._now + seconds, self._ties.random(), first=pause)

    def continue_order(self, order: Order, progress: float) -> None:
        # The rest of the training, after one more download if there is a newer model.
        download, training, upload = self._parts[order.client_id]
        fetch = download if order.vector.size else 0.0
        end = self._now + fetch + (1.0 - progress) * training + upload
        self._plan(order, end, self._ties.random())

    def recall(self, order: Order) -> bool:
        planned = next((e for e in self._events if e.order is order), None)
        if planned is None or planned.kind is not _Kind.ARRIVAL:
            return False
        download, training, upload = self._parts[order.client_id]
        began = order.sent_at + download
        epoch = training / self._epochs
        done = max(1, math.ceil((self._now - began) / epoch)) if epoch > 0 else self._epochs
        if done >= self._epochs:
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
            "parts": {client_id: tuple(parts) for client_id, parts in self._parts.items()},
            "events": self._events,
            "shortened": self._shortened,
            "presence": None if presence is None else presence.snapshot(),
            "lost": self._lost,
            "held": self._held,
            "alarm": self._alarm,
        }

    def restore(self, state: dict[str, Any], orders: Mapping[int, Order]) -> bool:
        self._now, self._ties, self._alarm = state["now"], state["ties"], state["alarm"]
        self._parts = {client_id: Parts(*parts) for client_id, parts in state["parts"].items()}
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
                    reply = self._collect(entry.number)
                    if reply.upload is None or reply.upload.done:
                        del self._parts[entry.order.client_id]
                    return Arrived(entry.order, reply)
            self._see_whether_it_pauses(entry)

    def close(self) -> None:
        self._mailbox.close()

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
        download, training, upload = self._parts[order.client_id]
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
