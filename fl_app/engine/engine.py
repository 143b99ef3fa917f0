"""The event loop: the only place where the global model, the buffer and the orders change.

    Schedule.start -> Strategy.dispatch -> Clock.dispatch ====> client
    publish <- Strategy.aggregate <- Schedule.take <- buffer <- Clock.next <==== client

Nothing here knows whether time is virtual, how orders travel or what the equations are.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from types import MappingProxyType
from typing import Any

import numpy as np

from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import Diverged, RunError, Stalled, is_number, require, require_at_least
from fl_app.core.events import (
    Aggregated,
    Checkpointed,
    Clustered,
    Dispatched,
    Evaluated,
    Event,
    Failed,
    Paused,
    Recalled,
    Refreshed,
    Rejected,
    Sink,
)
from fl_app.core.events import Arrived as UpdateArrived
from fl_app.core.layout import check_extra, check_returned, check_shape, check_vector, names_of
from fl_app.core.pool import ClientPool
from fl_app.core.snapshot import fingerprints
from fl_app.core.types import (
    KINDS,
    NO_EXTRA,
    Extra,
    GlobalModel,
    Order,
    State,
    Update,
    Upload,
    Vector,
)
from fl_app.core.vector import all_finite, read_only
from fl_app.engine.clock import (
    NO_VECTOR,
    Alarm,
    Arrived,
    Clock,
    ClockEvent,
    Expired,
    Joined,
    Left,
    Returned,
    Stray,
)
from fl_app.engine.guard import Guard
from fl_app.schedule import Schedule

log = logging.getLogger(__name__)

NO_STATE: State = {}

# Bounds on `Upload.rate_sum`. The entries of a vector whose length is a float32 are below 2e19, so
# multiplied or divided by these they still are finite.
LEAST_RATE, MOST_RATE = 1e-18, 1e18

Evaluate = Callable[[int, Vector], Mapping[str, float]]


@dataclass(frozen=True)
class Stop:
    """When a run ends: at whichever comes first.

    Attributes:
        num_versions: published model versions, >= 1.
        seconds: time on the run's clock.
        target_accuracy: of an evaluation, in [0, 1].
        updates: client updates that arrived and were accepted, >= 1.
    """

    num_versions: float = math.inf
    seconds: float = math.inf
    target_accuracy: float = math.inf
    updates: float = math.inf

    def __post_init__(self) -> None:
        bounds = {"num_versions": 1, "seconds": 0, "target_accuracy": 0, "updates": 1}
        for key, bound in bounds.items():
            value = getattr(self, key)
            if value != math.inf:
                require_at_least(key, value, bound, "there would be nothing to run")
        if self.num_versions == self.seconds == self.updates == math.inf:
            raise ValueError(
                "num_versions, seconds and updates are all unlimited: the run would never end"
            )


@dataclass
class Outcome:
    """How a run ended; what happened in it is told by its events.

    Attributes:
        params: the model that the strategy wants tested and saved, shape ``(d,)``.
        version: of the global model.
        seconds: on the run's clock.
        stopped: "num_versions", "seconds", "updates", "target_accuracy", "interrupted", or what
            went wrong.
        error: what went wrong, if the run could not go on.
        totals: what the strategy says of the run as a whole.
    """

    params: Vector
    version: int = 0
    seconds: float = 0.0
    stopped: str = ""
    error: RunError | None = None
    totals: Mapping[str, float] = field(default_factory=dict)


class Engine:
    """Runs one federation.

    Args:
        strategy: the equations.
        schedule: when clients start and updates are aggregated.
        clock: time and transport.
        initial: w_0, shape ``(d,)``, float32.
        stop: when the run ends.
        num_trainable: leading entries of the vector that are trainable; default all.
        evaluate: maps (version, vector) to metrics, ``"accuracy"`` and ``"loss"`` among them.
        eval_every: versions between evaluations; the first and the last version always are.
        guard: bounds on uploads, asked before the strategy is.
        upload_bytes: size of an upload with its extra vectors; default that of as many models.
        checkpoint: called with the version when it is time for a checkpoint (`state_dict`).
        checkpoint_every: versions between checkpoints; None = only when asked to `stop`.
        checkpoint_final: whether there is a checkpoint at the end, before the last evaluation, from
            which a run with a later end can go on.
        sinks: receive the events; the list may grow until `run`.
        seed: of the schedule's draws.
        learning_rates: by key, to be named where training diverges.

    Raises:
        ValueError: an argument is out of its bounds.
    """

    def __init__(
        self,
        *,
        strategy: Algorithm,
        schedule: Schedule,
        clock: Clock,
        initial: Vector,
        stop: Stop,
        num_trainable: int | None = None,
        evaluate: Evaluate | None = None,
        eval_every: int = 1,
        guard: Guard | None = None,
        upload_bytes: int | None = None,
        checkpoint: Callable[[int], None] | None = None,
        checkpoint_every: int | None = None,
        checkpoint_final: bool = False,
        sinks: Sequence[Sink] = (),
        seed: int = 0,
        learning_rates: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        require_at_least("eval_every", eval_every, 1, "versions cannot be evaluated more than once")
        problem = check_vector(initial, initial.size)
        if problem:
            raise ValueError(f"initial model: {problem}")
        for key in ("order_extra", "upload_extra"):
            names = getattr(strategy, key)
            require(
                not isinstance(names, str),
                key,
                repr(names),
                "a tuple of names",
                "each of its letters would name a vector",
            )
        self._strategy = strategy
        self._schedule = schedule
        self._clock = clock
        self._stop = stop
        self._num_trainable = initial.size if num_trainable is None else num_trainable
        self._evaluate_fn = evaluate
        self._eval_every = eval_every
        if upload_bytes is None:
            upload_bytes = initial.nbytes * (1 + len(strategy.upload_extra))
        self._upload_bytes = upload_bytes
        self._guard = Guard() if guard is None else guard
        self._checkpoint = checkpoint
        self._checkpoint_every = checkpoint_every
        self._checkpoint_final = checkpoint_final
        self._sinks = sinks
        self._rng = np.random.default_rng((seed, 0x5C4E))
        self._learning_rates = learning_rates
        self._first = fingerprints(self._attributes())
        self._unkept: list[str] = []  # attributes that no checkpoint holds, and that changed

        self._version = 0
        self._versions: dict[int, Vector] = {0: clock.share(initial)}
        self._cited: Counter[int] = Counter()  # orders and buffered updates by base version
        self._idle = ClientPool(clock.clients())
        self._busy: dict[int, Order] = {}  # client -> its order in time
        self._buffer: list[Update] = []
        self._latest: dict[int, Update] = {}  # by client, while the schedule surveys
        self._sequences: Counter[int] = Counter()  # client -> orders given so far
        self._client_states: dict[int, State] = {}  # what clients keep between orders
        self._orders = 0
        self._failures_in_a_row = 0
        self._checkpointed = 0  # version
        self._updates = 0  # that arrived and were accepted
        self._ended = ""  # what had ended the run, in the checkpoint of its end
        self._evaluated: int | None = None  # version
        self._asked_to_stop = False
        self._lost: list[Order] = []  # under way when the server before this one ended
        self.outcome = Outcome(params=initial)

    @property
    def clients(self) -> tuple[Collection[int], Collection[int]]:
        """Idle clients, and clients at work on an order."""
        return self._idle, self._busy.keys()

    def run(self) -> Outcome:
        """Run to the end; Ctrl-C and errors of the run end it early with what was done so far."""
        outcome = self.outcome
        try:
            waits = self._take_up()
            if self._evaluated is None:
                self._evaluate()
            while not outcome.stopped:
                if not waits:
                    self._keep()
                    if self._asked_to_stop:
                        outcome.stopped = "interrupted"
                        return outcome
                    self._start()
                    if self._settle():  # a client that left may have been the one awaited
                        continue
                waits = False
                event = self._clock.next(self._stop.seconds)
                if event is not None:
                    self._handle(event)
                elif self._clock.now >= self._stop.seconds:
                    outcome.stopped = "seconds"
                else:
                    raise Stalled(
                        "nothing is under way and the schedule starts no client: "
                        f"{len(self._idle)} idle, {len(self._buffer)} updates waiting"
                    )
            self._ended = outcome.stopped
            if self._checkpoint is not None and self._checkpoint_final:
                self._checkpoint(self._version)
            self._evaluate(final=True)
        except KeyboardInterrupt:
            outcome.stopped = "interrupted"
        except RunError as error:
            outcome.stopped = f"{type(error).__name__}: {error}"
            outcome.error = error
        finally:
            outcome.seconds = self._clock.now
            self._clock.close()
            outcome.version = self._version
            outcome.params = self._strategy.to_evaluate(self._model())
            outcome.totals = self._strategy.totals()
        return outcome

    @property
    def version(self) -> int:
        """Of the global model."""
        return self._version

    @property
    def reached(self) -> dict[str, float]:
        """How far the run is, by the keys that limit it."""
        return {
            "num_versions": self._version,
            "max_seconds": self._clock.now,
            "max_updates": self._updates,
        }

    def stop(self) -> None:
        """End at the next moment between two events, after a checkpoint; from any thread."""
        self._asked_to_stop = True

    def close(self) -> None:
        """End workers and threads. `run` does so at its end; call it where `run` is not reached."""
        self._clock.close()

    # -- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The whole state between two events, as `fl_app.core.snapshot` can encode it."""
        self._notice_attributes()
        return {
            "unkept": self._unkept,
            "rng": self._rng,
            "version": self._version,
            "versions": self._versions,
            "cited": self._cited,
            "idle": list(self._idle),
            "busy": self._busy,
            "buffer": self._buffer,
            "latest": self._latest,
            "sequences": self._sequences,
            "client_states": self._client_states,
            "orders": self._orders,
            "failures_in_a_row": self._failures_in_a_row,
            "checkpointed": self._checkpointed,
            "updates": self._updates,
            "ended": self._ended,
            "evaluated": self._evaluated,
            "guard": self._guard.state_dict(),
            "schedule": self._schedule.state_dict(),
            "strategy": self._strategy.state_dict(),
            "clock": self._clock.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state before `run`; on real nodes without the orders that were under way.

        Raises:
            ValueError: as `check_complete`.
        """
        check_complete(state)
        shared: dict[int, Vector] = {}

        def share(vector: Vector) -> Vector:
            if vector.size and id(vector) not in shared:
                shared[id(vector)] = self._clock.share(vector)
            return shared.get(id(vector), vector)

        self._rng = state["rng"]
        self._version = state["version"]
        self._versions = {version: share(params) for version, params in state["versions"].items()}
        self._cited = Counter(state["cited"])
        self._idle = ClientPool(state["idle"])
        self._busy = {
            client_id: replace(
                order,
                vector=share(order.vector),
                extra={name: share(vector) for name, vector in order.extra.items()},
            )
            for client_id, order in state["busy"].items()
        }
        self._buffer = list(state["buffer"])
        self._latest = dict(state["latest"])
        self._sequences = Counter(state["sequences"])
        self._client_states = dict(state["client_states"])
        self._orders = state["orders"]
        self._failures_in_a_row = state["failures_in_a_row"]
        self._checkpointed = state["checkpointed"]
        self._updates = state["updates"]
        self._ended = state["ended"]
        self._evaluated = state["evaluated"]
        self._guard.load_state_dict(state["guard"])
        self._schedule.load_state_dict(state["schedule"])
        self._strategy.load_state_dict(state["strategy"])
        orders = {order.number: order for order in self._busy.values()}
        if not self._clock.load_state_dict(state["clock"], orders):
            self._idle, self._busy = ClientPool(self._clock.clients()), {}
            self._lost = list(orders.values())

    def _take_up(self) -> bool:
        """Go on where the restored run stood; whether that is the moment before the next event.

        A run that had ended is, with a later end, to be as if it had never stopped. If its end was
        a number of versions, more may be due at that moment; if it was a time, clients were started
        already, and a second call could draw other ones.
        """
        outcome = self.outcome
        ended, self._ended = self._ended, ""
        lost, self._lost = self._lost, []
        for order in lost:
            self._fail(order, "the server was started anew")
        if ended == "target_accuracy":
            outcome.stopped = ended
        elif self._version >= self._stop.num_versions:
            outcome.stopped = "num_versions"
        elif ended == "num_versions":
            self._settle()
        self._count_updates()
        return ended == "seconds" and not lost

    def _attributes(self) -> dict[str, Any]:
        """What must not change, since no checkpoint holds it, by owner and name."""
        strategy, schedule = self._strategy, self._schedule
        held = {"state", "report", "schedule", *strategy.transient}
        attributes = {
            f"{type(strategy).__name__}.{name}": value
            for name, value in vars(strategy).items()
            if name not in held
        }
        if type(schedule).state_dict is Schedule.state_dict:
            name = type(schedule).__name__
            attributes |= {f"{name}.{key}": value for key, value in vars(schedule).items()}
        return attributes

    def _notice_attributes(self) -> None:
        """Warn once of every attribute that has changed and that no checkpoint holds."""
        now = fingerprints({k: v for k, v in self._attributes().items() if k not in self._unkept})
        before = {k: v for k, v in self._first.items() if k not in self._unkept}
        of_strategy = f"{type(self._strategy).__name__}."
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                self._unkept.append(key)
                name = key.removeprefix(of_strategy)
                log.warning(
                    "%s has changed since the run began, and no checkpoint holds it: no run can go "
                    "on from this one; %s",
                    key,
                    f'keep it as self.state["{name}"], or list it in `transient` if it can be '
                    "computed again"
                    if name != key
                    else "write its state_dict and load_state_dict",
                )

    def _keep(self) -> None:
        """Make a checkpoint if it is time for one."""
        every = self._checkpoint_every
        due = every is not None and self._version // every > self._checkpointed // every
        if due:
            self._checkpointed = self._version
            self._emit(Checkpointed(self._clock.now, self._version))
        if self._checkpoint is not None and (due or self._asked_to_stop):
            self._checkpoint(self._version)

    # -- orders -----------------------------------------------------------------------------------

    def _start(self) -> None:
        self._clock.alarm(self._schedule.wake(self._clock.now))
        for client_id in self._schedule.start(self._idle, self._busy, self._buffer, self._rng):
            model = self._model()
            vector, config = self._strategy.dispatch(model, client_id)
            self._check_returned("dispatch", vector)
            extra = self._extra(model, client_id)
            order = Order(
                number=self._orders,
                client_id=client_id,
                sequence=self._sequences[client_id],
                base_version=self._version,
                vector=vector,
                config={**config, "version": self._version},
                sent_at=self._clock.now,
                state=self._client_states.get(client_id, NO_STATE),
                extra=extra,
            )
            self._orders += 1
            self._sequences[client_id] += 1
            self._cited[self._version] += 1
            self._idle.discard(client_id)
            self._busy[client_id] = order
            sent = vector.nbytes * (1 + len(extra))
            self._emit(Dispatched(order.sent_at, client_id, order.number, self._version, sent))
            self._clock.dispatch(order)

    def _extra(self, model: GlobalModel, client_id: int) -> Extra:
        """What travels to a client beside `model`.

        Raises:
            ValueError: the strategy gives other vectors than it says.
            Diverged: they are not finite.
        """
        names = self._strategy.order_extra
        if not names:
            return NO_EXTRA
        extra = self._strategy.dispatch_extra(model, client_id)
        problem = check_extra(extra, names, model.params.size)
        if problem:
            raise ValueError(f"dispatch_extra() for client {client_id}: {problem}")
        if not all_finite(extra.values()):
            raise Diverged(
                f"what travels with version {model.version}: "
                f"{names_of(extra)} must be finite, or no client could use it"
            )
        return {name: read_only(extra[name]) for name in names}

    def _handle(self, event: ClockEvent) -> None:
        match event:
            case Arrived(order, reply):
                upload = reply.upload
                # A client that diverged keeps its earlier state, or it would diverge for ever.
                if upload is not None and all_finite(upload.state.values()):
                    self._client_states.pop(order.client_id, None)
                    if upload.state:
                        self._client_states[order.client_id] = upload.state
                if upload is not None and not upload.done and 0 < upload.progress < 1:
                    self._refresh(order, upload)
                    return
                del self._busy[order.client_id]
                self._idle.add(order.client_id)
                if upload is None:
                    self._fail(order, reply.error)
                else:
                    self._arrive(order, upload)
            case Expired(order):
                del self._busy[order.client_id]
                self._fail(order, "deadline passed")
            case Returned(order):
                self._idle.add(order.client_id)
                self._reject(order, "late: its deadline had passed")
            case Stray():
                self._reject(None, "duplicate: this order was answered before")
            case Alarm():
                pass  # the schedule is asked next
            case Joined(client_id):
                self._idle.add(client_id)
            case Left(client_id, orders, reason):
                self._idle.discard(client_id)
                for order in orders:
                    self._busy.pop(order.client_id, None)
                    self._fail(order, reason)

    def _refresh(self, order: Order, upload: Upload) -> None:
        """Answer a client that paused: with what the strategy has for it, or nothing newer."""
        model, now = self._model(), self._clock.now
        client_id, base_version = order.client_id, order.base_version
        self._emit(Paused(now, client_id, order.number, base_version, upload.progress))
        vector, config, extra = NO_VECTOR, {**order.config, "continues": True}, NO_EXTRA
        if self._version > base_version:
            paused = Update.of(upload, client_id, base_version, order.number)
            vector, more = self._strategy.refresh(model, paused)
            self._check_returned("refresh", vector)
            config |= {**more, "fresh_version": self._version}
            extra = self._extra(model, client_id)
            sent = vector.nbytes * (1 + len(extra))
            self._emit(Refreshed(now, client_id, order.number, self._version, sent))
        order = replace(order, vector=vector, config=config, state=upload.state, extra=extra)
        self._busy[client_id] = order
        self._clock.continue_order(order, upload.progress)

    def _arrive(self, order: Order, upload: Upload) -> None:
        base_version = order.base_version
        if upload.base_version is not None:
            base_version = upload.base_version
        update = Update.of(upload, order.client_id, base_version, order.number)
        model = self._model()
        malformed = self._malformed(order, upload)
        diverged = "" if malformed else self._overflow(model, update)
        reason = (
            malformed
            or diverged
            or self._guard.refuse(model, update, self._clock.now)
            or self._strategy.admit(model, update)
        )
        if reason:
            self._release(order.base_version)
            self._failures_in_a_row += 1
            self._reject(order, reason)
            self._check_alive(reason + (self._likely_cause() if diverged else ""))
            return
        self._failures_in_a_row = 0
        self._cited[base_version] += 1
        self._release(order.base_version)
        self._updates += 1
        self._emit(
            UpdateArrived(
                self._clock.now,
                order.client_id,
                order.number,
                base_version,
                age=model.age(update),
                loss=update.loss if math.isfinite(update.loss) else None,
                bytes=self._upload_bytes,
            )
        )
        self._buffer.append(update)
        if self._schedule.surveys:
            # Its base version may be forgotten by the time of the survey, so not as a model.
            gradient = model.gradient(update)
            self._latest[update.client_id] = replace(update, vector=gradient, kind="gradient")
        self._settle()
        self._count_updates()

    def _count_updates(self) -> None:
        """End the run if enough updates arrived, all of which may have become versions by now."""
        if self._updates >= self._stop.updates:
            self.outcome.stopped = self.outcome.stopped or "updates"

    def _malformed(self, order: Order, upload: Upload) -> str:
        if not upload.done:
            return f"progress={upload.progress!r} of a paused client must be between 0 and 1"
        if not (upload.base_version is None or 0 <= upload.base_version <= order.base_version):
            return (
                f"base_version={upload.base_version} must be between 0 and {order.base_version}, "
                "the version of its order"
            )
        forgotten = upload.base_version not in (None, *self._versions)
        if forgotten and (upload.kind == "model" or not self._strategy.cites_forgotten):
            return f"base_version={upload.base_version} is one that no order under way cites"
        if upload.kind not in KINDS:
            return f"kind {upload.kind!r} is none of {', '.join(KINDS)}"
        if not (is_number(upload.num_examples) and upload.num_examples > 0):
            return f"num_examples={upload.num_examples!r} must be at least 1"
        if not is_number(upload.rate_sum):
            return f"rate_sum={upload.rate_sum!r} must be between {LEAST_RATE} and {MOST_RATE}"
        if not isinstance(upload.loss, Real):
            return f"loss={upload.loss!r} must be a number"
        size = self._versions[self._version].size
        return check_shape(upload.vector, size) or check_extra(
            upload.extra, self._strategy.upload_extra, size
        )

    def _overflow(self, model: GlobalModel, update: Update) -> str:
        """Why an upload, or what strategies make of it, is not finite; "" if it is."""
        if not LEAST_RATE <= update.rate_sum <= MOST_RATE:
            return f"rate_sum={update.rate_sum!r} must be between {LEAST_RATE} and {MOST_RATE}"
        for name, vector in update.extra.items():
            if not all_finite([vector]):
                return f"extra vector {name!r} has non-finite entries"
        # Its length, if that is a number, bounds its entries, and with its rates what they become:
        # of nearly all uploads one pass tells.
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.dot(update.vector, update.vector)):
                return ""
            if not all_finite([update.vector]):
                return "payload has non-finite entries"
            if not all_finite([model.delta(update), model.gradient(update)]):
                return (
                    "payload overflows as a gradient or a displacement: "
                    f"rate_sum={update.rate_sum:g}"
                )
        return ""

    def _fail(self, order: Order, reason: str) -> None:
        self._release(order.base_version)
        self._failures_in_a_row += 1
        self._emit(
            Failed(self._clock.now, order.client_id, order.number, order.base_version, reason)
        )
        self._check_alive(reason)

    def _reject(self, order: Order | None, reason: str) -> None:
        now = self._clock.now
        if order is None:
            self._emit(Rejected(now, reason=reason))
        else:
            self._emit(Rejected(now, order.client_id, order.number, order.base_version, reason))

    def _check_alive(self, reason: str) -> None:
        # Clients that left are counted too: their orders failed, and they may come back.
        known = max(len(self._busy) + len(self._idle), len(self._sequences))
        limit = 100 + 10 * known
        if self._failures_in_a_row > limit:
            raise Stalled(
                f"{self._failures_in_a_row} orders in a row brought nothing usable, "
                f"the last one: {reason}"
            )

    # -- versions ---------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Aggregate what the schedule releases; whether there was anything."""
        acted = False
        while not self.outcome.stopped:
            if self._schedule.survey(self._version, self._buffer):
                self._cluster()
            elif taken := self._schedule.take(self._buffer):
                self._aggregate(taken)
            else:
                break
            acted = True
        return acted

    def _cluster(self) -> None:
        """Let the strategy put the clients that are here into clusters; makes no version."""
        present = sorted(self._latest.keys() & {*self._idle, *self._busy})
        self._latest = {client_id: self._latest[client_id] for client_id in present}
        clusters = self._strategy.cluster(self._model(), list(self._latest.values()))
        if clusters.keys() != self._latest.keys():
            raise ValueError(
                f"cluster() must put each of the {len(present)} clients that it is shown into one "
                f"cluster, and nobody else: {sorted(clusters.keys() ^ self._latest.keys())}"
            )
        dropped = self._schedule.regroup(clusters, self._buffer)
        if not self._schedule.surveys:
            self._latest = {}
        self._discard(dropped)
        for update in dropped:
            self._release(update.base_version)
        self._emit(
            Clustered(
                self._clock.now,
                self._version,
                client=list(clusters),
                cluster=list(clusters.values()),
                dropped=[update.client_id for update in dropped],
                order=[update.order for update in dropped],
            )
        )

    def _aggregate(self, updates: Sequence[Update]) -> None:
        model = self._model()
        self._strategy.report = {}
        params = self._strategy.aggregate(model, updates)
        self._check_returned("aggregate", params)
        if not all_finite([params]):
            raise Diverged(f"version {self._version + 1} is not finite{self._likely_cause()}")
        weights = self._strategy.report.get("weight")
        if weights is not None and len(weights) != len(updates):
            raise RunError(
                f"aggregation of version {self._version + 1}: report['weight'] has {len(weights)} "
                f"entries, expected one for each of {len(updates)} updates"
            )
        ages = [model.age(update) for update in updates]
        self._discard(updates)
        # In this order, so that Ctrl-C between any two steps leaves a version that exists.
        self._versions[self._version + 1] = self._clock.share(params)
        self._version += 1
        for update in updates:
            self._release(update.base_version)
        self._forget(self._version - 1)
        now = self._clock.now
        self._emit(
            Aggregated(
                now,
                self._version,
                client=[update.client_id for update in updates],
                order=[update.order for update in updates],
                age=ages,
                report=self._strategy.report,
            )
        )
        for client_id in self._schedule.recall(self._busy, self._version):
            order = self._busy[client_id]
            if self._clock.recall(order):
                self._emit(Recalled(now, client_id, order.number, self._version))
        if self._version % self._eval_every == 0:
            self._evaluate()
        if self._version >= self._stop.num_versions:
            self.outcome.stopped = self.outcome.stopped or "num_versions"

    def _check_returned(self, method: str, vector: object) -> None:
        name = f"{type(self._strategy).__name__}.{method}"
        if problem := check_returned(name, vector, self._versions[self._version].size):
            raise RunError(problem)

    def _likely_cause(self) -> str:
        rates = " or ".join(f"{key}={rate:g}" for key, rate in self._learning_rates.items())
        return f", most likely since a learning rate is too large: try a tenth of {rates or 'it'}"

    def _discard(self, updates: Sequence[Update]) -> None:
        gone = {id(update) for update in updates}
        self._buffer = [update for update in self._buffer if id(update) not in gone]

    def _model(self) -> GlobalModel:
        return GlobalModel(
            params=self._versions[self._version],
            version=self._version,
            history=MappingProxyType(self._versions),
            num_trainable=self._num_trainable,
        )

    def _release(self, version: int) -> None:
        self._cited[version] -= 1
        self._forget(version)

    def _forget(self, version: int) -> None:
        if self._cited[version] == 0:
            del self._cited[version]
            if version != self._version:
                self._versions.pop(version, None)

    def _evaluate(self, *, final: bool = False) -> None:
        if self._evaluate_fn is None or (final and self._evaluated == self._version):
            return
        metrics = self._evaluate_fn(self._version, self._strategy.to_evaluate(self._model()))
        self._evaluated = self._version
        self._emit(Evaluated(self._clock.now, self._version, metrics))
        if metrics.get("accuracy", -math.inf) >= self._stop.target_accuracy:
            # What ended the run before its last evaluation goes before.
            self.outcome.stopped = self.outcome.stopped or "target_accuracy"

    def _emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink.emit(event)


def check_complete(state: Mapping[str, Any]) -> None:
    """Refuse the state of an engine (`Engine.state_dict`) that lacks something learned.

    Raises:
        ValueError: attributes had changed that no checkpoint holds.
    """
    if unkept := state["unkept"]:
        raise ValueError(
            f"the checkpoint is not complete: {', '.join(unkept)} had changed and is not in it. "
            "Keep what a strategy learns in its self.state, and what a schedule remembers in its "
            "state_dict(), and start anew"
        )
