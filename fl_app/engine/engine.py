"""The event loop: the only place where the global model, the buffer and the orders change.

    Schedule.start -> Strategy.dispatch -> Clock.dispatch ====> client
    publish <- Strategy.aggregate <- Schedule.take <- buffer <- Clock.next <==== client

Nothing here knows whether time is virtual, how orders travel or what the equations are.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from fl_app.core.algorithm import Algorithm
from fl_app.core.bugs import place_of
from fl_app.core.errors import (
    ClientError,
    Diverged,
    RunError,
    Stalled,
    require,
    require_at_least,
)
from fl_app.core.events import (
    Aggregated,
    Arrived,
    Benched,
    Checkpointed,
    ClientEvaluated,
    ClientsEvaluated,
    Clustered,
    Dispatched,
    Evaluated,
    EvaluationOrdered,
    Event,
    Failed,
    Paused,
    Recalled,
    Refreshed,
    Rejected,
    Sink,
    Supplied,
)
from fl_app.core.layout import check_vector
from fl_app.core.pool import ClientPool
from fl_app.core.types import (
    NO_EXTRA,
    Order,
    Reply,
    Scores,
    State,
    Update,
    Upload,
    Vector,
)
from fl_app.core.vector import all_finite
from fl_app.engine.background import Background
from fl_app.engine.checks import diverged, likely_cause, malformed, order_extra, require_vector
from fl_app.engine.client_evaluation import ClientEvaluation, figures, unusable
from fl_app.engine.clock import (
    NO_VECTOR,
    Alarm,
    Clock,
    ClockEvent,
    Expired,
    Joined,
    Left,
    Replied,
    Returned,
    Stray,
)
from fl_app.engine.guard import MALFORMED, Guard
from fl_app.engine.intake import Intake
from fl_app.engine.outbox import Measurement, Outbox
from fl_app.engine.unkept import UnkeptAttributes
from fl_app.engine.versions import Versions
from fl_app.schedule import Schedule

log = logging.getLogger(__name__)

NO_STATE: State = {}
MOST_BUGS = 20  # whose tracebacks are logged
LEAST_PATIENCE = 600.0  # seconds that the last evaluation on clients may take without a deadline

Evaluate = Callable[[int, Vector], Mapping[str, float] | Measurement]


@dataclass(frozen=True)
class Stop:
    """When a run ends: at the first of these limits.

    Attributes:
        num_versions: published model versions, >= 1.
        seconds: time on the run's clock.
        target_accuracy: accuracy of an evaluation, in [0, 1]: on the server, or the mean of one on
            clients if the server evaluates nothing.
        updates: client updates, that is accepted uploads, >= 1.
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
    """How a run ended; the run's events tell what happened before.

    Attributes:
        params: the model that the strategy wants tested and saved, shape ``(d,)``.
        version: version of the global model.
        seconds: time on the run's clock; the last evaluation on clients is not part of it.
        stopped: "num_versions", "seconds", "updates", "target_accuracy", "interrupted", or what
            went wrong.
        error: what went wrong, if the run could not go on.
        asked_to_stop: whether `Engine.stop` or Ctrl-C asked the run to end, perhaps too late.
        totals: numbers of strategy and clock about the whole run.
    """

    params: Vector
    version: int = 0
    seconds: float = 0.0
    stopped: str = ""
    error: RunError | None = None
    asked_to_stop: bool = False
    totals: Mapping[str, float] = field(default_factory=dict)


class Engine:
    """Runs one federation.

    Args:
        strategy: computes the next version from updates.
        schedule: decides when clients start and when updates are aggregated.
        clock: time and transport.
        initial: w_0, shape ``(d,)``, float32.
        stop: when the run ends.
        num_trainable: number of trainable entries, which lead the vector; default all.
        evaluate: maps (version, vector) to metrics, ``"accuracy"`` and ``"loss"`` among them; or to
            a measurement that goes on beside the engine (`fl_app.engine.background.Background`).
        eval_every: versions between evaluations. The first and the last version are evaluated, too.
        client_evaluation: evaluations on clients; the last version is evaluated, too. Default none.
        guard: bounds on uploads, checked before the strategy is asked.
        tolerates: whether the run goes on after an error in a client's code, whose order has
            failed; False = the first one ends the run.
        intake: which uploads come in, and what of them the strategy is shown. Default all, as they
            are.
        upload_bytes: bytes of an upload with its extra vectors; default: each as large as a model.
        fixed_bytes: of the model's fixed part, which travels with a client's first order.
        checkpoint: saves a checkpoint (`state_dict`); called with the version.
        checkpoint_every: versions between checkpoints; None = only when `stop()` was called.
        checkpoint_final: whether there is a checkpoint at the end, before the last evaluation, so
            that a run with a later end can continue from it.
        sinks: receive the events; the list may grow until `run`.
        seed: seed of the schedule's draws.
        learning_rates: rates by key; a message about divergence names them.

    Attributes:
        outcome: how the run ended; while it goes on, `stopped` is empty.

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
        client_evaluation: ClientEvaluation | None = None,
        guard: Guard | None = None,
        tolerates: bool = True,
        intake: Intake | None = None,
        upload_bytes: int | None = None,
        fixed_bytes: int = 0,
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
        self._evaluate_fn = evaluate
        self._eval_every = eval_every
        self._on_clients = client_evaluation or ClientEvaluation()
        if upload_bytes is None:
            upload_bytes = initial.nbytes * (1 + len(strategy.upload_extra))
        self._upload_bytes = upload_bytes
        self._fixed_bytes = fixed_bytes
        self._guard = Guard() if guard is None else guard
        self._tolerates = tolerates
        self._bugs: set[tuple[str, ...]] = set()  # places in the code whose errors were logged
        self._intake = intake or Intake()
        self._checkpoint = checkpoint
        self._checkpoint_every = checkpoint_every
        self._checkpoint_final = checkpoint_final
        self._outbox = Outbox(sinks)
        self._rng = np.random.default_rng((seed, 0x5C4E))
        self._learning_rates = learning_rates
        self._unkept = UnkeptAttributes(strategy, schedule)

        if num_trainable is None:
            num_trainable = initial.size
        self._versions = Versions(clock.share(initial), num_trainable)
        self._idle = ClientPool(clock.clients())
        self._busy: dict[int, Order] = {}  # client -> its order, unless that expired
        self._buffer: list[Update] = []
        self._latest: dict[int, Update] = {}  # by client, until the schedule has its clusters
        self._sequences: Counter[int] = Counter()  # client -> orders given so far
        self._client_states: dict[int, State] = {}  # what clients keep between orders
        self._orders = 0
        self._failures_in_a_row = 0
        self._checkpointed = 0  # version
        self._updates = 0  # uploads that arrived and were accepted
        self._ended = ""  # why the run ended, for its last checkpoint
        self._evaluated: int | None = None  # version
        self._lost_orders: list[Order] = []  # in flight when the previous server ended
        self.outcome = Outcome(params=initial)

    @property
    def clients(self) -> tuple[Collection[int], Collection[int]]:
        """Idle clients, and busy ones. A client still at work on an expired order is neither."""
        return self._idle, self._busy.keys() | self._on_clients.orders.keys()

    def run(self) -> Outcome:
        """Run until a limit of `Stop` is reached; returns the outcome.

        Ctrl-C and a `RunError` end the run early: `stopped` and `error` of the outcome say so. Any
        other exception is raised.
        """
        outcome = self.outcome
        ended: float | None = None
        try:
            already_started = self._resume()
            if self._evaluated is None:
                self._evaluate()
            while not outcome.stopped:
                if not already_started:
                    self._checkpoint_if_due()
                    if outcome.asked_to_stop:
                        outcome.stopped = "interrupted"
                        return outcome
                    self._start()
                    if self._settle():  # the schedule may have waited for a client that left
                        continue
                already_started = False
                event = self._clock.next(self._stop.seconds)
                if event is not None:
                    self._handle(event)
                elif self._clock.now >= self._stop.seconds:
                    outcome.stopped = "seconds"
                else:
                    benched = len(self._guard.benched)
                    raise Stalled(
                        "nothing is under way and the schedule starts no client: "
                        f"{len(self._idle)} idle, {len(self._buffer)} updates waiting"
                        f"{f', {benched} clients benched' if benched else ''}"
                    )
            self._ended = outcome.stopped
            if self._checkpoint is not None and self._checkpoint_final:
                self._save(self._checkpoint)
            self._evaluate(final=True)
            ended = self._clock.now
            self._evaluate_last_on_clients()
            self._outbox.settle()
        except KeyboardInterrupt:
            outcome.asked_to_stop, outcome.stopped = True, "interrupted"
        except RunError as error:
            outcome.stopped = f"{type(error).__name__}: {error}"
            outcome.error = error
        finally:
            with suppress(RunError, KeyboardInterrupt):
                self._outbox.settle()
            outcome.seconds = self._clock.now if ended is None else ended
            self.close()
            outcome.version = self.version
            outcome.params = self._strategy.to_evaluate(self._versions.model)
            outcome.totals = {
                **self._strategy.totals(),
                **self._intake.totals(),
                **self._clock.totals(),
            }
        return outcome

    @property
    def version(self) -> int:
        """Version of the global model."""
        return self._versions.number

    @property
    def reached(self) -> dict[str, float]:
        """How far the run is, by the configuration keys of its limits."""
        return {
            "num_versions": self.version,
            "max_seconds": self._clock.now,
            "max_updates": self._updates,
        }

    def stop(self) -> None:
        """Ask the run to save a checkpoint and end before the next event; from any thread."""
        self.outcome.asked_to_stop = True

    def close(self) -> None:
        """End workers and threads. `run` calls it; call it yourself only without `run`."""
        self._clock.close()
        if isinstance(self._evaluate_fn, Background):
            self._evaluate_fn.close()

    # -- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The whole state between two events, for `fl_app.core.snapshot`."""
        return {
            "unkept": self._unkept.notice(),
            "rng": self._rng,
            **self._versions.state_dict(),
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
            "client_evaluation": self._on_clients.state_dict()
            if self._on_clients.enabled
            else None,
            "guard": self._guard.state_dict(),
            "schedule": self._schedule.state_dict(),
            "strategy": self._strategy.state_dict(),
            "clock": self._clock.state_dict(),
            "intake": self._intake.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state before `run`; on real nodes the orders in flight are lost.

        Raises:
            ValueError: see `check_complete`.
        """
        check_complete(state)
        shared: dict[int, Vector] = {}
        on_clients = state.get("client_evaluation") or {}

        def share(vector: Vector) -> Vector:
            if vector.size and id(vector) not in shared:
                shared[id(vector)] = self._clock.share(vector)
            return shared.get(id(vector), vector)

        self._rng = state["rng"]
        self._versions.load_state_dict(state, share)
        self._idle = ClientPool(state["idle"])
        self._busy, evaluating = (
            {
                client_id: replace(
                    order,
                    vector=share(order.vector),
                    extra={name: share(vector) for name, vector in order.extra.items()},
                )
                for client_id, order in orders.items()
            }
            for orders in (state["busy"], on_clients.get("orders", {}))
        )
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
        self._intake.load_state_dict(state.get("intake", {}))
        if on_clients:
            waited_for = on_clients["vector"]
            vector = None if waited_for is None else share(waited_for)
            self._on_clients.load_state_dict(on_clients, self._idle, vector, evaluating)
        orders = {o.number: o for o in (*self._busy.values(), *evaluating.values())}
        if not self._clock.load_state_dict(state["clock"], orders):
            self._idle, self._busy = ClientPool(self._clock.clients()), {}
            self._lost_orders = list(orders.values())
            for client_id in list(self._on_clients.waiting):
                self._on_clients.leave(client_id)

    def _resume(self) -> bool:
        """Prepare a new or restored run; returns whether clients were started since its last event.

        A finished run that gets a later end must continue as if it had never stopped. If its end
        was a number of versions, another aggregation may be due. If its end was a time, the
        schedule has started clients already, and asking it again could draw other clients.
        """
        outcome = self.outcome
        ended, self._ended = self._ended, ""
        lost, self._lost_orders = self._lost_orders, []
        for order in lost:
            self._fail(order, "the server was started anew")
        self._end_evaluations()
        if ended == "target_accuracy":
            outcome.stopped = ended
        elif self.version >= self._stop.num_versions:
            outcome.stopped = "num_versions"
        elif ended == "num_versions":
            self._settle()
        self._count_updates()
        return ended == "seconds" and not lost

    def _checkpoint_if_due(self) -> None:
        """Save a checkpoint if one is due or the run is to stop."""
        every = self._checkpoint_every
        due = every is not None and self.version // every > self._checkpointed // every
        if due:
            self._checkpointed = self.version
            self._emit(Checkpointed(self._clock.now, self.version))
        if self._checkpoint is not None and (due or self.outcome.asked_to_stop):
            self._save(self._checkpoint)

    def _save(self, checkpoint: Callable[[int], None]) -> None:
        self._outbox.settle()  # a checkpoint knows how far the files have been written
        checkpoint(self.version)

    # -- orders -----------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._on_clients.ready:
            self._start_evaluations()
        if self._on_clients.enabled:
            self._schedule.evaluating(self._on_clients.orders.keys())
        self._clock.alarm(self._schedule.wake(self._clock.now))
        for client_id in self._schedule.start(self._idle, self._busy, self._buffer, self._rng):
            model = self._versions.model
            vector, config = self._strategy.dispatch(model, client_id)
            require_vector(self._strategy, "dispatch", vector, model.params.size)
            extra = order_extra(self._strategy, model, client_id)
            self._clock.work("dispatch")
            order = Order(
                number=self._orders,
                client_id=client_id,
                sequence=self._sequences[client_id],
                base_version=self.version,
                vector=vector,
                config={**config, "version": self.version},
                sent_at=self._clock.now,
                state=self._client_states.get(client_id, NO_STATE),
                extra=extra,
            )
            self._orders += 1
            self._sequences[client_id] += 1
            self._versions.cite(self.version)
            self._idle.discard(client_id)
            self._busy[client_id] = order
            sent = vector.nbytes * (1 + len(extra))
            parts = self._clock.dispatch(order)
            logged = (None, None) if parts is None else parts.logged
            self._emit(
                Dispatched(order.sent_at, client_id, order.number, self.version, sent, *logged)
            )
            if order.sequence == 0:
                self._supply(order, self._fixed_bytes)

    def _supply(self, order: Order, num_bytes: int) -> None:
        if num_bytes:
            self._emit(Supplied(self._clock.now, order.client_id, order.number, num_bytes))

    def _handle(self, event: ClockEvent) -> None:
        match event:
            case Replied(order, reply) if order.evaluates:
                self._supply(order, reply.supplied)
                self._becomes_idle(order.client_id)
                self._take_scores(order, reply)
            case Replied(order, reply):
                upload = reply.upload
                self._supply(order, reply.supplied)
                # A client that diverged keeps its earlier state, or it would diverge for ever.
                if upload is not None and all_finite(upload.state.values()):
                    self._client_states.pop(order.client_id, None)
                    if upload.state:
                        self._client_states[order.client_id] = upload.state
                if upload is not None and not upload.done and 0 < upload.progress < 1:
                    self._refresh(order, upload)
                    return
                del self._busy[order.client_id]
                self._becomes_idle(order.client_id)
                if upload is None:
                    self._fail(order, reply.error, reply.traceback)
                else:
                    self._arrive(order, upload)
            case Expired(order):
                if not order.evaluates:
                    del self._busy[order.client_id]
                self._fail(order, "deadline passed")
            case Returned(order, supplied):
                self._supply(order, supplied)
                self._becomes_idle(order.client_id)
                self._reject(order, "late: its deadline had passed")
            case Stray():
                self._reject(None, "duplicate: this order was answered before")
            case Alarm():
                pass  # the schedule is asked next
            case Joined(client_id):
                if client_id not in self._guard.benched:
                    self._idle.add(client_id)
            case Left(client_id, orders, reason, traceback):
                self._idle.discard(client_id)
                self._on_clients.leave(client_id)
                for order in orders:
                    if not order.evaluates:
                        self._busy.pop(order.client_id, None)
                    self._fail(order, reason, traceback)
                self._end_evaluations()

    def _becomes_idle(self, client_id: int) -> None:
        if client_id in self._guard.benched:
            return
        self._idle.add(client_id)
        self._on_clients.free(client_id)

    def _refresh(self, order: Order, upload: Upload) -> None:
        """Answer a client that paused, with a fresh model if there is a newer version."""
        model, now = self._versions.model, self._clock.now
        client_id, base_version = order.client_id, order.base_version
        self._emit(Paused(now, client_id, order.number, base_version, upload.progress))
        self._clock.work("dispatch")
        vector, config, extra = NO_VECTOR, {**order.config, "continues": True}, NO_EXTRA
        if self.version > base_version:
            seconds = now - order.sent_at
            paused = Update.of(upload, client_id, base_version, order.number, seconds)
            vector, more = self._strategy.refresh(model, paused)
            require_vector(self._strategy, "refresh", vector, model.params.size)
            config |= {**more, "fresh_version": self.version}
            extra = order_extra(self._strategy, model, client_id)
            sent = vector.nbytes * (1 + len(extra))
            self._emit(Refreshed(self._clock.now, client_id, order.number, self.version, sent))
        order = replace(order, vector=vector, config=config, state=upload.state, extra=extra)
        self._busy[client_id] = order
        self._clock.continue_order(order, upload.progress)

    def _arrive(self, order: Order, upload: Upload) -> None:
        base_version = order.base_version
        if upload.base_version is not None:
            base_version = upload.base_version
        seconds = self._clock.now - order.sent_at
        update = Update.of(upload, order.client_id, base_version, order.number, seconds)
        model = self._versions.model
        reason = (
            malformed(self._strategy, model, order, upload)
            or self._intake.refuse(model, update)
            or self._guard.refuse(model, update, self._clock.now)
            or self._strategy.admit(model, update)
        )
        if reason:
            self._versions.release(order.base_version)
            self._failures_in_a_row += 1
            self._reject(order, reason)
            self._bench(order.client_id, reason)
            cause = likely_cause(self._learning_rates) if diverged(reason) else ""
            self._check_alive(reason + cause)
            return
        self._failures_in_a_row = 0
        self._guard.count_accepted(order.client_id)
        self._versions.cite(base_version)
        self._versions.release(order.base_version)
        self._updates += 1
        self._emit(
            Arrived(
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
            # Stored as a gradient: its base version may be forgotten before the survey.
            gradient = model.gradient(update)
            self._latest[update.client_id] = replace(update, vector=gradient, kind="gradient")
        self._settle()
        self._count_updates()

    def _count_updates(self) -> None:
        """End the run if enough updates arrived; called after the aggregations they allowed."""
        if self._updates >= self._stop.updates:
            self.outcome.stopped = self.outcome.stopped or "updates"

    def _fail(self, order: Order, reason: str, traceback: str = "") -> None:
        if order.evaluates:
            self._on_clients.end(order)
            reason = f"evaluation: {reason}"
        else:
            self._versions.release(order.base_version)
            self._failures_in_a_row += 1
        now, raised = self._clock.now, bool(traceback)
        self._emit(Failed(now, order.client_id, order.number, order.base_version, reason, raised))
        if raised:
            self._tell_bug(order, reason, traceback)
        if order.evaluates:
            self._end_evaluations()
            return
        if reason.startswith(MALFORMED):
            self._bench(order.client_id, reason)
        self._check_alive(reason)

    def _tell_bug(self, order: Order, reason: str, traceback: str) -> None:
        """Log an error in a client's code, once for each place in the code; end the run with it."""
        where = f"client {order.client_id}, order {order.number}"
        place = place_of(traceback)
        if place not in self._bugs and len(self._bugs) < MOST_BUGS:
            self._bugs.add(place)
            log.error("%s, raised an error:\n%s", where, traceback)
        if not self._tolerates:
            raise ClientError(
                f"{where}: {reason}. With failures=tolerate such an order has failed, and the run "
                "goes on"
            )

    def _bench(self, client_id: int, reason: str) -> None:
        """Give a client no order any more, if its uploads were refused often enough."""
        if uploads := self._guard.count_refused(client_id, reason):
            self._idle.discard(client_id)
            self._on_clients.leave(client_id)
            self._emit(Benched(self._clock.now, client_id, uploads, reason))

    def _reject(self, order: Order | None, reason: str) -> None:
        now = self._clock.now
        if order is None:
            self._emit(Rejected(now, reason=reason))
        else:
            self._emit(Rejected(now, order.client_id, order.number, order.base_version, reason))

    def _check_alive(self, reason: str) -> None:
        # Clients that left are counted, too: their orders failed, and they may come back.
        known = max(len(self._busy) + len(self._idle), len(self._sequences))
        limit = 100 + 10 * known
        if self._failures_in_a_row > limit:
            raise Stalled(
                f"{self._failures_in_a_row} orders in a row brought nothing usable, "
                f"the last one: {reason}"
            )

    # -- versions ---------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Aggregate what the schedule takes, or form clusters; returns whether it did anything."""
        acted = False
        while not self.outcome.stopped:
            if self._schedule.survey(self.version, self._buffer):
                self._cluster()
            elif taken := self._schedule.take(self._intake.eligible(self._buffer)):
                self._aggregate(taken)
            else:
                break
            acted = True
        return acted

    def _cluster(self) -> None:
        """Let the strategy put the present clients into clusters; this makes no version."""
        online = {*self._idle, *self._busy, *self._on_clients.orders}
        present = sorted(self._latest.keys() & online)
        self._latest = {client_id: self._latest[client_id] for client_id in present}
        clusters = self._strategy.cluster(self._versions.model, list(self._latest.values()))
        if clusters.keys() != self._latest.keys():
            raise ValueError(
                f"cluster() must put each of the {len(present)} clients that it is shown into one "
                f"cluster, and no others: {sorted(clusters.keys() ^ self._latest.keys())}"
            )
        dropped = self._schedule.regroup(clusters, self._buffer)
        if not self._schedule.surveys:
            self._latest = {}
        self._discard(dropped)
        for update in dropped:
            self._versions.release(update.base_version)
        self._emit(
            Clustered(
                self._clock.now,
                self.version,
                client=list(clusters),
                cluster=list(clusters.values()),
                dropped=[update.client_id for update in dropped],
                order=[update.order for update in dropped],
            )
        )

    def _aggregate(self, updates: Sequence[Update]) -> None:
        model = self._versions.model
        opened = self._intake.open(model, updates)
        if opened.faults:
            self._drop({id(updates[place]): why for place, why in opened.faults.items()})
            return
        self._strategy.report = {}
        params = self._strategy.aggregate(model, opened.updates)
        self._intake.complete(self._strategy.report, opened)
        require_vector(self._strategy, "aggregate", params, model.params.size)
        if not all_finite([params]):
            cause = likely_cause(self._learning_rates)
            raise Diverged(f"version {self.version + 1} is not finite{cause}")
        weights = self._strategy.report.get("weight")
        if weights is not None and len(weights) != len(updates):
            raise RunError(
                f"aggregation of version {self.version + 1}: report['weight'] has {len(weights)} "
                f"entries, expected one for each of {len(updates)} updates"
            )
        ages = [model.age(update) for update in updates]
        self._discard(updates)
        # The order of these steps matters: Ctrl-C between any two must leave an existing version.
        self._versions.publish(self._clock.share(params))
        for update in updates:
            self._versions.release(update.base_version)
        self._clock.work("aggregation")
        now = self._clock.now
        self._emit(
            Aggregated(
                now,
                self.version,
                client=[update.client_id for update in updates],
                order=[update.order for update in updates],
                age=ages,
                busy=self._clock.busy,
                report=self._strategy.report,
            )
        )
        for client_id in self._schedule.recall(self._busy, self.version):
            order = self._busy[client_id]
            if self._clock.recall(order):
                self._emit(Recalled(now, client_id, order.number, self.version))
        if self.version % self._eval_every == 0:
            self._evaluate()
        if self._on_clients.is_due(self.version):
            self._evaluate_on_clients()
        if self.version >= self._stop.num_versions:
            self.outcome.stopped = self.outcome.stopped or "num_versions"

    def _drop(self, reasons: Mapping[int, str]) -> None:
        """Take updates out of the buffer that cannot be opened, by their identities."""
        gone = [update for update in self._buffer if id(update) in reasons]
        self._discard(gone)
        for update in gone:
            self._versions.release(update.base_version)
            self._emit(
                Rejected(
                    self._clock.now,
                    update.client_id,
                    update.order,
                    update.base_version,
                    reasons[id(update)],
                )
            )

    def _discard(self, updates: Sequence[Update]) -> None:
        gone = {id(update) for update in updates}
        self._buffer = [update for update in self._buffer if id(update) not in gone]

    def _evaluate(self, *, final: bool = False) -> None:
        if self._evaluate_fn is None or (final and self._evaluated == self.version):
            return
        metrics = self._evaluate_fn(self.version, self._strategy.to_evaluate(self._versions.model))
        self._evaluated = self.version
        if not final:  # the last one comes after the run's end
            self._clock.work("evaluation")
        if not isinstance(metrics, Mapping):
            if self._stop.target_accuracy == math.inf:
                self._outbox.emit_later(self._clock.now, self.version, metrics)
                return
            metrics = metrics.result()  # which may end the run
        self._emit(Evaluated(self._clock.now, self.version, metrics))
        if metrics.get("accuracy", -math.inf) >= self._stop.target_accuracy:
            # Another limit may have ended the run before this last evaluation.
            self.outcome.stopped = self.outcome.stopped or "target_accuracy"

    # -- evaluation on clients --------------------------------------------------------------------

    def _evaluate_on_clients(self) -> None:
        """Choose the clients that measure the current version; they do so when they are free."""
        model = self._versions.model
        vector = self._strategy.to_evaluate(model)
        require_vector(self._strategy, "to_evaluate", vector, model.params.size)
        others = [*self._busy, *self._on_clients.orders]
        since = self._clock.now, self._updates
        shared = self._clock.share(vector)
        self._on_clients.plan(self.version, shared, self._idle, others, since)
        self._end_evaluations()

    def _start_evaluations(self) -> None:
        """Give the free ones of the chosen clients their evaluate orders."""
        version = self._on_clients.version
        for client_id in sorted(self._on_clients.ready):
            self._clock.work("dispatch")
            now = self._clock.now
            order = Order(
                number=self._orders,
                client_id=client_id,
                sequence=self._sequences[client_id],
                base_version=version,
                vector=self._on_clients.start(client_id),
                config={"version": version},
                sent_at=now,
                state=self._client_states.get(client_id, NO_STATE),
                evaluates=True,
            )
            self._orders += 1
            self._idle.discard(client_id)
            self._on_clients.orders[client_id] = order
            sent = order.vector.nbytes
            self._emit(EvaluationOrdered(now, client_id, order.number, version, sent))
            self._clock.dispatch(order)

    def _take_scores(self, order: Order, reply: Reply) -> None:
        scores = reply.scores
        problem = reply.error or unusable(scores, self._guard.max_examples or math.inf)
        if problem or scores is None:
            self._fail(order, problem, reply.traceback)
            return
        metrics = dict(sorted(scores.metrics.items()))  # a message does not keep their order
        self._on_clients.end(order, Scores(metrics, scores.num_examples))
        self._emit(
            ClientEvaluated(
                self._clock.now,
                order.client_id,
                order.number,
                order.base_version,
                num_examples=scores.num_examples,
                metrics=metrics,
                bytes=8 * (1 + len(metrics)),
            )
        )
        self._end_evaluations()

    def _end_evaluations(self) -> None:
        """Tell the results of evaluations for which no more scores will come."""
        for version, (since, client_updates), scores in self._on_clients.ended():
            metrics = figures(scores)
            num_examples = sum(each.num_examples for each in scores)
            self._emit(
                ClientsEvaluated(
                    self._clock.now,
                    version,
                    since,
                    client_updates,
                    clients=len(scores),
                    num_examples=num_examples,
                    metrics=metrics,
                )
            )
            accuracy = metrics.get("accuracy_mean", -math.inf)
            if self._evaluate_fn is None and accuracy >= self._stop.target_accuracy:
                self.outcome.stopped = self.outcome.stopped or "target_accuracy"

    def _evaluate_last_on_clients(self) -> None:
        """Evaluate the last version on clients, now that training has ended.

        Training orders under way are called off, so that no evaluation waits for them. A node that
        does not answer is waited for until its deadline, and at most as long as the run took or ten
        minutes, whichever is longer. Ctrl-C ends the wait; the scores that have come count.
        """
        on_clients, clock = self._on_clients, self._clock
        if not on_clients.enabled:
            return
        clock.call_off_training()
        for client_id in list(self._busy):
            del self._busy[client_id]
            self._becomes_idle(client_id)
        if on_clients.version < self.version:
            self._evaluate_on_clients()
        until = clock.now + max(clock.now, LEAST_PATIENCE)
        with suppress(KeyboardInterrupt):
            while not self.outcome.asked_to_stop:
                self._start_evaluations()
                event = clock.next(until) if on_clients.orders else None
                if event is None:
                    break
                if not isinstance(event, Stray):  # the reply to an order that was called off
                    self._handle(event)
        for client_id in list(on_clients.waiting):  # late with something else
            on_clients.leave(client_id)
        for order in list(on_clients.orders.values()):
            self._fail(order, "the run ended")
        self._end_evaluations()

    def _emit(self, event: Event) -> None:
        self._outbox.emit(event)


def check_complete(state: Mapping[str, Any]) -> None:
    """Refuse a state of `Engine.state_dict` in which changed attributes are missing.

    Raises:
        ValueError: attributes have changed that no checkpoint holds.
    """
    if unkept := state["unkept"]:
        raise ValueError(
            f"the checkpoint is not complete: {', '.join(unkept)} had changed and is not in it. "
            "Keep what a strategy learns in its self.state, and what a schedule remembers in its "
            "state_dict(), and start anew"
        )
