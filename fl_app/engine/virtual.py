"""Virtual time: the seed decides what happens, and the host's speed never does."""

import heapq
import math
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from fl_app.core.errors import Stalled
from fl_app.core.types import NO_EXTRA, NO_VECTOR, Devices, Order, Parts, Reply
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
)
from fl_app.engine.lookahead import Lookahead
from fl_app.engine.presence import Availability, Presence
from fl_app.engine.server import Server, Work

# Attributes of the clock that a checkpoint holds as they are.
PLAIN = ("_now", "_ties", "_parts", "_lost", "_early", "_recalled")


class Kind(IntEnum):
    """What happens at a moment."""

    REPLY = 0
    DEADLINE = 1
    LATE_REPLY = 2
    EARLIEST_PAUSE = 3


COMPUTED = (Kind.REPLY, Kind.EARLIEST_PAUSE)  # of which the order's result is needed
ARRIVALS = (Kind.REPLY, Kind.LATE_REPLY)
MAX_ALARMS = 1000  # at one second, before the run counts as stalled
NEVER = (math.inf, 0.0, 0.0, 0.0)  # the parts of an order that does not end


class Moment(NamedTuple):
    """A coming moment of an order; ties are broken by a seeded random key, not by client id.

    Attributes:
        time: on the run's clock, seconds.
        tie: smaller ones come first among moments of the same time.
        number: of the order; that of a recalled order is negative.
        kind: what happens.
        order: the order to which it happens.
    """

    # A tuple, because a heap of thousands compares tuples without calling Python.
    time: float
    tie: float
    number: int
    kind: Kind
    order: Order


@dataclass(eq=False)
class VirtualClock(Clock):
    """A `Clock` of discrete events. The methods are described there.

    The mailbox computes results before they are due, those that are due first (`Lookahead`). An
    order that is due later waits, and costs a reference to its model version but no copy.

    Args:
        mailbox: does the work; any of its workers serves any client. Where it computes several
            orders together, no client may pause.
        devices: the duration of every order.
        num_clients: clients are 0..num_clients-1.
        deadline: seconds after which an order expires; inf = never.
        seed: of the tie-breaking keys.
        availability: when clients come and go; None = all are always online. A client that goes
            offline loses its order.
        epochs: number of local epochs of an order; a client can pause or be recalled after each.
        counts_epochs: whether ``local_epochs`` in an order's config scales its training time; False
            where training is counted in steps.
        steps: of a client, the local steps of an order, which ``local_steps`` in an order's config
            replaces; None = that key does not change the training time.
        pauses: whether clients may pause. Only the computed result says when a client pauses, so
            it is needed by the end of the first epoch, the earliest pause.
        evaluation_share: of a client, seconds of an evaluation over those of an order's training;
            None = evaluations take no time.
        server: what the server's own work takes; None = no time, and every reply is used when it
            arrives. Deadlines and stays apply to a reply's arrival, not to when it is handled.
    """

    mailbox: Mailbox
    devices: Devices
    num_clients: int
    _: KW_ONLY
    deadline: float = math.inf
    seed: int = 0
    availability: InitVar[Availability | None] = None
    epochs: int = 1
    counts_epochs: bool = False
    steps: Callable[[int], int] | None = None
    pauses: bool = False
    evaluation_share: Callable[[int], float] | None = None
    server: Server | None = None

    def __post_init__(self, availability: Availability | None) -> None:
        self._now = 0.0
        self._server = self.server or Server()
        self._ties = np.random.default_rng((self.seed, 0x71E5))
        self._moments: list[Moment] = []  # a heap
        # Of every client's order: download, start, the rest of the training, upload; seconds.
        self._parts: dict[int, tuple[float, float, float, float]] = {}
        self._lookahead = Lookahead(self.mailbox)
        self._presence = None if availability is None else Presence(availability, self.num_clients)
        self._lost: dict[int, tuple[Order]] = {}  # client -> the order in which it goes offline
        self._early: dict[int, Reply] = {}  # computed to see whether the client pauses
        self._recalled: dict[int, Order] = {}  # shorter orders, by their own numbers
        self._alarms = 0  # in a row, while no time passed
        self._idle_alarm = False  # the last alarm came with nothing under way, and no order since

    @property
    def now(self) -> float:
        return self._now

    def clients(self) -> Collection[int]:
        return self._presence.online if self._presence else range(self.num_clients)

    def work(self, what: Work) -> None:
        self._now = max(self._now, self._server.work(what, self._now))

    def dispatch(self, order: Order) -> Parts | None:
        self._idle_alarm = False
        if self._presence:  # the server's own work may have taken the time past them
            self._presence.skip_absences(order.client_id, self._now)
        if order.evaluates:
            # Its tie comes after those of training orders; nothing is drawn, so their draws stay.
            parts = self._parts_of_evaluation(order)
            self._plan(order, self._now + parts.download + parts.training, 1.0)
            return parts if parts.metered else None
        parts = self.devices.parts(order.client_id, order.sequence, self._now)
        start, seconds = parts.start, parts.seconds
        epoch = (parts.training - start) / self.epochs
        share = None
        if self.steps and "local_steps" in order.config:
            # A client without examples has no steps, and its order fails.
            share = int(order.config["local_steps"]) / max(1, self.steps(order.client_id))
        elif self.counts_epochs and "local_epochs" in order.config:
            share = int(order.config["local_epochs"]) / self.epochs
        if share is not None:
            parts = parts._replace(training=start + share * (parts.training - start))
            seconds = sum(parts[:3])  # not `parts.seconds`, which adds in another order
        download, training, upload = parts[:3]
        self._parts[order.client_id] = download, start, training - start, upload
        pause = math.inf
        if self.pauses:  # of an order in steps, the epochs are unknown
            known = self.epochs > 1 and "local_steps" not in order.config
            pause = self._now + download + start + (epoch if known else 0.0)
        self._plan(order, self._now + seconds, self._ties.random(), pause=pause)
        return parts

    def continue_order(self, order: Order, progress: float) -> None:
        # The rest of the training, after one more download if there is a newer model.
        download, _, training, upload = self._parts[order.client_id]
        fetch = download if order.vector.size else 0.0
        end = self._now + fetch + (1.0 - progress) * training + upload
        self._plan(order, end, self._ties.random())

    def call_off_training(self) -> None:
        off = [moment for moment in self._moments if not moment.order.evaluates]
        self._moments = [moment for moment in self._moments if moment.order.evaluates]
        heapq.heapify(self._moments)
        self._lookahead.cancel({m.number for m in off if m.kind in COMPUTED} - self._early.keys())
        self._early.clear()
        self._lost = {c: lost for c, lost in self._lost.items() if lost[0].evaluates}
        self._parts.clear()
        self._recalled.clear()

    def recall(self, order: Order) -> bool:
        planned = [moment for moment in self._moments if moment.order.number == order.number]
        kinds = [moment.kind for moment in planned]
        download, start, training, upload = self._parts.get(order.client_id, NEVER)
        if math.isinf(download + training + upload) or Kind.EARLIEST_PAUSE in kinds:
            return False  # it is not under way, never ends, or may pause first
        if {"continues", "local_steps"} & order.config.keys():
            return False  # its epochs do not follow from when it was dispatched
        began = order.sent_at + download + start
        epochs = self.epochs
        if self.counts_epochs:
            epochs = int(order.config.get("local_epochs", epochs))
        epoch = training / epochs
        # Epochs done when the current one ends.
        done = max(1, math.ceil((self._now - began) / epoch)) if epoch > 0 else epochs
        number = -1 - order.number  # negative, so unlike the number of any other order
        if number in self._recalled:
            recalled_epochs = self._recalled[number].config["local_epochs"]
            return done == recalled_epochs  # else it is sending its result
        end = began + done * epoch + upload
        if done >= epochs or end > min(self._limits(order)):
            return False
        early = self._early.get(order.number)
        if early is not None and early.upload is not None and not early.upload.done:
            return False  # it pauses first
        # What was computed is the result of the whole order, so a shorter one is computed anew.
        if self._early.pop(order.number, None) is None and Kind.REPLY in kinds:
            self._lookahead.cancel([order.number])
        self._lost.pop(order.client_id, None)
        shorter = {**order.config, "local_epochs": done}
        self._recalled[number] = replace(order, number=number, config=shorter)
        tie = planned[0].tie if planned else self._ties.random()
        moment = Moment(end, tie, number, Kind.REPLY, order)
        self._moments = [moment, *(m for m in self._moments if m not in planned)]
        heapq.heapify(self._moments)
        self._submit(moment)
        return True

    def state_dict(self) -> dict[str, Any]:
        # Orders that await their reply in time are in the engine's state, so only their numbers.
        moments = [
            (*m[:3], m.kind.name, m.order.number if m.kind in COMPUTED else m.order)
            for m in self._moments
        ]
        return {
            **{name: getattr(self, name) for name in PLAIN},
            "moments": moments,
            "presence": None if self._presence is None else self._presence.state_dict(),
            "lookahead": self._lookahead.state_dict(),
            "server": self._server.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], orders: Mapping[int, Order]) -> bool:
        for name in PLAIN:
            setattr(self, name, copy(state[name]))
        if self._presence is not None:
            self._presence.load_state_dict(state["presence"])
        self._server.load_state_dict(state["server"])
        self._moments = [  # which is a heap already
            Moment(at, tie, number, Kind[kind], orders[o] if isinstance(o, int) else o)
            for at, tie, number, kind, o in state["moments"]
        ]
        computed = {*self._early, *self._lookahead.load_state_dict(state["lookahead"])}
        # What else was computed ahead of its time is computed again.
        for moment in self._moments:
            if moment.kind in COMPUTED and moment.number not in computed:
                self._submit(moment)
        return True

    def next(self, until: float, alarm: float = math.inf) -> ClockEvent | None:
        presence = self._presence
        while self._now <= until:  # the server's own work may have taken it further
            begins, due = self._handling_times()
            change = presence.due if presence else math.inf
            first = self._moments[0].time if self._moments else math.inf
            if presence and change < first and change <= min(until, alarm):
                return self._next_presence_change(presence)
            if alarm < begins and max(self._now, alarm) <= until:
                if math.isinf(min(first, change)):
                    if self._idle_alarm:  # nothing came of the last one: the run has stalled
                        return None
                    self._idle_alarm = True
                self._alarms = 0 if alarm > self._now else self._alarms + 1
                if self._alarms > MAX_ALARMS:
                    problem = f"Schedule.wake returned {alarm:g} at second {self._now:g}"
                    raise Stalled(f"{problem} again and again: it must return a later one, or inf")
                self._now = max(self._now, alarm)
                return Alarm()
            if due > until or math.isinf(due):
                # Time passes up to the limit of the run, unless nothing is to come at all.
                if math.isfinite(until) and (self._moments or presence or math.isfinite(alarm)):
                    self._now = max(self._now, until)
                return None
            self._alarms = 0
            moment = heapq.heappop(self._moments)
            if moment.kind in ARRIVALS:
                self._server.receive(moment.time)
            self._now = max(self._now, due)
            match moment.kind:
                case Kind.DEADLINE:
                    return Expired(moment.order)
                case Kind.LATE_REPLY:
                    return Returned(moment.order)
                case Kind.REPLY:
                    return Replied(moment.order, self._reply(moment))
            self._resolve_early_result(moment)
        return None

    def _handling_times(self) -> tuple[float, float]:
        """When the server begins and ends to handle the first moment, seconds; inf = never."""
        if not self._moments:
            return math.inf, math.inf
        first = self._moments[0]
        if first.kind in ARRIVALS:
            begins = self._server.begins(first.time)
            return begins, begins + self._server.receipt
        at = max(self._now, first.time)
        return at, at

    def _plan(self, order: Order, end: float, tie: float, pause: float = math.inf) -> None:
        """Plan the end of an order: by its reply, its deadline or its client's departure.

        Args:
            order: the order, just given to its client.
            end: when its reply arrives unless something else happens first.
            tie: orders the events of one moment.
            pause: the earliest time at which the client may pause; inf = it cannot.
        """
        deadline, departure = self._limits(order)
        first = min(pause, end)
        if math.isfinite(first) and first <= min(deadline, departure):
            kind = Kind.EARLIEST_PAUSE if pause < end else Kind.REPLY
            moment = Moment(first, tie, order.number, kind, order)
            heapq.heappush(self._moments, moment)
            if order.number not in self._early:
                self._submit(moment)
            return
        # Unless it is recalled, it is never computed, so it must not keep vectors alive either.
        self._early.pop(order.number, None)
        order = replace(order, vector=NO_VECTOR, extra=NO_EXTRA)
        if departure < deadline:
            self._lost[order.client_id] = (order,)
            return
        for at, kind in ((deadline, Kind.DEADLINE), (end, Kind.LATE_REPLY)):
            if math.isfinite(at) and at <= departure:
                heapq.heappush(self._moments, Moment(at, tie, order.number, kind, order))

    def _limits(self, order: Order) -> tuple[float, float]:
        """When an order's deadline passes, and when its client goes offline, seconds."""
        departure = self._presence.until(order.client_id) if self._presence else math.inf
        return order.sent_at + self.deadline, departure

    def _submit(self, moment: Moment) -> None:
        order = self._recalled.get(moment.number, moment.order)
        self._lookahead.submit(moment.time, moment.tie, order)

    def _reply(self, moment: Moment) -> Reply:
        """The reply that is due now."""
        self._recalled.pop(moment.number, None)
        reply = self._early.pop(moment.number, None) or self._lookahead.result(moment.number)
        if not moment.order.evaluates and (reply.upload is None or reply.upload.done):
            del self._parts[moment.order.client_id]
        return reply

    def _parts_of_evaluation(self, order: Order) -> Parts:
        """The download of the model and a share of the client's training time.

        The few bytes of the reply take no time.
        """
        if self.evaluation_share is None:
            return Parts(0.0, 0.0, 0.0)
        sequence = max(order.sequence, 1)  # clients that overlap have a longer first cycle
        parts = self.devices.parts(order.client_id, sequence, self._now)
        share = self.evaluation_share(order.client_id)
        work = parts.work and (share * parts.work[0], share * parts.work[1], share * parts.work[2])
        return parts._replace(training=share * parts.training, upload=0.0, work=work)

    def _resolve_early_result(self, moment: Moment) -> None:
        """Plan the end of the order anew, now that it is known whether the client pauses."""
        order = moment.order
        reply = self._early[moment.number] = self._lookahead.result(moment.number)
        download, start, training, upload = self._parts[order.client_id]
        share = 1.0
        if reply.upload is not None and not reply.upload.done:
            share, upload = reply.upload.progress, 0.0
        end = order.sent_at + download + (start + share * training) + upload
        self._plan(order, max(end, moment.time), moment.tie)

    def _next_presence_change(self, presence: Presence) -> Joined | Left:
        self._now = max(self._now, presence.due)
        client_id, joins = presence.change()
        if joins:
            return Joined(client_id)
        return Left(client_id, self._lost.pop(client_id, ()), "went offline")
