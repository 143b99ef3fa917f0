"""The event loop: the only place where the global model, the buffer and the orders change.

    Schedule.start -> Strategy.dispatch -> Clock.dispatch ====> client
    publish <- Strategy.aggregate <- Schedule.take <- buffer <- Clock.next <==== client

Nothing here knows whether time is virtual, how orders travel or what the equations are.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import Diverged, RunError, Stalled, require, require_at_least
from fl_app.core.events import (
    Aggregated,
    Arrived,
    Benched,
    Checkpointed,
    ClientsEvaluated,
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
    Supplied,
)
from fl_app.core.layout import check_vector
from fl_app.core.types import NO_EXTRA, Order, Reply, Update, Upload, Vector
from fl_app.core.vector import all_finite
from fl_app.engine.background import Background
from fl_app.engine.checks import (
    diverged,
    likely_cause,
    malformed,
    order_extra,
    require_vector,
    require_weights,
)
from fl_app.engine.client_evaluation import ClientEvaluation
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
from fl_app.engine.limits import Outcome, Stop
from fl_app.engine.mistakes import Mistakes
from fl_app.engine.orders import Orders
from fl_app.engine.outbox import Measurement, Outbox
from fl_app.engine.unkept import UnkeptAttributes
from fl_app.engine.versions import Versions
from fl_app.schedule import Schedule

__all__ = ["Engine", "Evaluate", "Outcome", "Stop", "check_complete"]

LEAST_PATIENCE = 600.0  # seconds that the last evaluation on clients may take without a deadline

Evaluate = Callable[[int, Vector], Mapping[str, float] | Measurement]


@dataclass
class _Progress:
    """What the engine itself remembers between two events."""

    buffer: list[Update] = field(default_factory=list)
    latest: dict[int, Update] = field(default_factory=dict)
    """By client, until the schedule has its clusters."""
    failures_in_a_row: int = 0
    checkpointed: int = 0
    """Version."""
    updates: int = 0
    """Uploads that arrived and were accepted."""
    ended: str = ""
    """Why the run ended, for its last checkpoint."""
    evaluated: int | None = None
    """Version."""


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
        self._mistakes = Mistakes(tolerates)
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
        self._orders = Orders(clock.clients())
        self._at = _Progress()
        self._lost_orders: list[Order] = []  # in flight when the previous server ended
        most_examples = self._guard.max_examples or math.inf
        self._on_clients.join(self._orders, clock, self._emit, most_examples)
        self.outcome = Outcome(params=initial)

    @property
    def clients(self) -> tuple[Collection[int], Collection[int]]:
        """Idle clients, and busy ones. A client still at work on an expired order is neither."""
        return self._orders.idle, self._orders.busy.keys() | self._on_clients.orders.keys()

    def run(self) -> Outcome:
        """Run until a limit of `Stop` is reached; returns the outcome.

        Ctrl-C and a `RunError` end the run early: `stopped` and `error` of the outcome say so. Any
        other exception is raised.
        """
        outcome = self.outcome
        ended: float | None = None
        try:
            already_started = self._resume()
            if self._at.evaluated is None:
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
                    raise self._stalled()
            self._at.ended = outcome.stopped
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
            "max_updates": self._at.updates,
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
            **self._orders.state_dict(),
            **vars(self._at),
            "client_evaluation": self._on_clients.state_dict()
            if self._on_clients.enabled
            else None,
            **{name: part.state_dict() for name, part in self._parts().items()},
            "clock": self._clock.state_dict(),
        }

    def _parts(self) -> dict[str, Any]:
        """What restores its own state without help, by its name in a checkpoint."""
        return {
            "guard": self._guard,
            "schedule": self._schedule,
            "strategy": self._strategy,
            "intake": self._intake,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state before `run`; on real nodes the orders in flight are lost.

        Raises:
            ValueError: see `check_complete`.
        """
        check_complete(state)
        shared: dict[int, Vector] = {}

        def share(vector: Vector) -> Vector:
            if vector.size and id(vector) not in shared:
                shared[id(vector)] = self._clock.share(vector)
            return shared.get(id(vector), vector)

        self._rng = state["rng"]
        self._versions.load_state_dict(state, share)
        self._orders.load_state_dict(state, share)
        self._at = _Progress(**{each.name: copy(state[each.name]) for each in fields(_Progress)})
        for name, part in self._parts().items():
            part.load_state_dict(state.get(name, {}))
        evaluating: dict[int, Order] = {}
        if state.get("client_evaluation"):
            self._on_clients.load_state_dict(state["client_evaluation"], share)
            evaluating = self._on_clients.orders
        orders = {o.number: o for o in (*self._orders.busy.values(), *evaluating.values())}
        if not self._clock.load_state_dict(state["clock"], orders):
            self._lost_orders = [
                *self._orders.lose_all(self._clock.clients()),
                *evaluating.values(),
            ]
            for client_id in list(self._on_clients.waiting):
                self._on_clients.leave(client_id)

    def _resume(self) -> bool:
        """Prepare a new or restored run; returns whether clients were started since its last event.

        A finished run that gets a later end must continue as if it had never stopped. If its end
        was a number of versions, another aggregation may be due. If its end was a time, the
        schedule has started clients already, and asking it again could draw other clients.
        """
        outcome = self.outcome
        ended, self._at.ended = self._at.ended, ""
        lost, self._lost_orders = self._lost_orders, []
        for order in lost:
            self._lose(order, "the server was started anew")
        self._on_clients.tell()
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
        due = every is not None and self.version // every > self._at.checkpointed // every
        if due:
            self._at.checkpointed = self.version
            self._emit(Checkpointed(self._clock.now, self.version))
        if self._checkpoint is not None and (due or self.outcome.asked_to_stop):
            self._save(self._checkpoint)

    def _save(self, checkpoint: Callable[[int], None]) -> None:
        self._outbox.settle()  # a checkpoint knows how far the files have been written
        checkpoint(self.version)

    # -- orders -----------------------------------------------------------------------------------

    def _start(self) -> None:
        self._on_clients.start()
        if self._on_clients.enabled:
            self._schedule.evaluating(self._on_clients.orders.keys())
        self._clock.alarm(self._schedule.wake(self._clock.now))
        orders, model = self._orders, self._versions.model
        for client_id in self._schedule.start(orders.idle, orders.busy, self._at.buffer, self._rng):
            vector, config = self._strategy.dispatch(model, client_id)
            require_vector(self._strategy, "dispatch", vector, model.params.size)
            extra = order_extra(self._strategy, model, client_id)
            self._clock.work("dispatch")
            now = self._clock.now
            order = orders.give(client_id, self.version, vector, config, now, extra)
            self._versions.cite(self.version)
            sent = vector.nbytes * (1 + len(extra))
            parts = self._clock.dispatch(order)
            logged = (None, None) if parts is None else parts.logged
            self._emit(Dispatched(now, client_id, order.number, self.version, sent, *logged))
            if order.sequence == 0:
                self._supply(order, self._fixed_bytes)

    def _supply(self, order: Order, num_bytes: int) -> None:
        if num_bytes:
            self._emit(Supplied(self._clock.now, order.client_id, order.number, num_bytes))

    def _handle(self, event: ClockEvent) -> None:
        orders = self._orders
        match event:
            case Replied(order, reply):
                self._supply(order, reply.supplied)
                self._take(order, reply)
            case Expired(order):
                if not order.evaluates:
                    del orders.busy[order.client_id]
                self._lose(order, "deadline passed")
            case Returned(order, supplied):
                self._supply(order, supplied)
                self._becomes_idle(order.client_id)
                self._emit(self._rejected(order, "late: its deadline had passed"))
            case Stray():
                reason = "duplicate: this order was answered before"
                self._emit(Rejected(self._clock.now, reason=reason))
            case Alarm():
                pass  # the schedule is asked next
            case Joined(client_id):
                if client_id not in self._guard.benched:
                    orders.idle.add(client_id)
            case Left(client_id, lost, reason, traceback):
                orders.idle.discard(client_id)
                self._on_clients.leave(client_id)
                for order in lost:
                    if not order.evaluates:
                        orders.busy.pop(order.client_id, None)
                    self._lose(order, reason, traceback)
                self._on_clients.tell()

    def _take(self, order: Order, reply: Reply) -> None:
        """Handle a reply that came in time."""
        client_id, upload = order.client_id, reply.upload
        if order.evaluates:
            self._becomes_idle(client_id)
            if problem := self._on_clients.take(order, reply):
                self._lose(order, problem, reply.traceback)
            return
        if upload is not None:
            self._orders.keep(client_id, upload.state)
            if not upload.done and 0 < upload.progress < 1:
                self._refresh(order, upload)
                return
        del self._orders.busy[client_id]
        self._becomes_idle(client_id)
        if upload is None:
            self._lose(order, reply.error, reply.traceback)
        else:
            self._arrive(order, upload)

    def _becomes_idle(self, client_id: int) -> None:
        if client_id in self._guard.benched:
            return
        self._orders.idle.add(client_id)
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
        self._orders.busy[client_id] = order
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
            self._lose(order, reason, refused=True)
            return
        at = self._at
        at.failures_in_a_row = 0
        self._guard.count_accepted(order.client_id)
        self._versions.cite(base_version)
        self._versions.release(order.base_version)
        at.updates += 1
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
        at.buffer.append(update)
        if self._schedule.surveys:
            # Stored as a gradient: its base version may be forgotten before the survey.
            gradient = model.gradient(update)
            at.latest[update.client_id] = replace(update, vector=gradient, kind="gradient")
        self._settle()
        self._count_updates()

    def _count_updates(self) -> None:
        """End the run if enough updates arrived; called after the aggregations they allowed."""
        if self._at.updates >= self._stop.updates:
            self.outcome.stopped = self.outcome.stopped or "updates"

    def _lose(self, order: Order, why: str, traceback: str = "", *, refused: bool = False) -> None:
        """An order ends without an update, or without scores.

        Args:
            order: the order.
            why: the reason.
            traceback: of an error in the client's code, if that is the reason.
            refused: whether there was an upload, which is not let in; else the client failed.
        """
        if order.evaluates:
            self._on_clients.end(order)
            why = f"evaluation: {why}"
        else:
            self._versions.release(order.base_version)
            self._at.failures_in_a_row += 1
        self._emit(
            self._rejected(order, why)
            if refused
            else Failed(
                self._clock.now,
                order.client_id,
                order.number,
                order.base_version,
                why,
                bool(traceback),
            )
        )
        if traceback:
            self._mistakes.tell(order, why, traceback)
        if order.evaluates:
            self._on_clients.tell()
            return
        if refused or why.startswith(MALFORMED):
            self._bench(order.client_id, why)
        if self._at.failures_in_a_row > 100 + 10 * self._orders.known:
            cause = likely_cause(self._learning_rates) if refused and diverged(why) else ""
            raise Stalled(
                f"{self._at.failures_in_a_row} orders in a row brought nothing usable, "
                f"the last one: {why}{cause}"
            )

    def _bench(self, client_id: int, why: str) -> None:
        """Give a client no order any more, if its uploads were refused often enough."""
        if uploads := self._guard.count_refused(client_id, why):
            self._orders.idle.discard(client_id)
            self._on_clients.leave(client_id)
            self._emit(Benched(self._clock.now, client_id, uploads, why))

    def _rejected(self, order: Order, reason: str) -> Rejected:
        now = self._clock.now
        return Rejected(now, order.client_id, order.number, order.base_version, reason)

    def _stalled(self) -> Stalled:
        idle, benched = len(self._orders.idle), len(self._guard.benched)
        return Stalled(
            "nothing is under way and the schedule starts no client: "
            f"{idle} idle, {len(self._at.buffer)} updates waiting"
            f"{f', {benched} clients benched' if benched else ''}"
        )

    # -- versions ---------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Aggregate what the schedule takes, or form clusters; returns whether it did anything."""
        acted = False
        while not self.outcome.stopped:
            if self._schedule.survey(self.version, self._at.buffer):
                self._cluster()
            elif taken := self._schedule.take(self._intake.eligible(self._at.buffer)):
                self._aggregate(taken)
            else:
                break
            acted = True
        return acted

    def _cluster(self) -> None:
        """Let the strategy put the present clients into clusters; this makes no version."""
        at, orders = self._at, self._orders
        online = {*orders.idle, *orders.busy, *self._on_clients.orders}
        present = sorted(at.latest.keys() & online)
        at.latest = {client_id: at.latest[client_id] for client_id in present}
        clusters = self._strategy.cluster(self._versions.model, list(at.latest.values()))
        if clusters.keys() != at.latest.keys():
            raise ValueError(
                f"cluster() must put each of the {len(present)} clients that it is shown into one "
                f"cluster, and no others: {sorted(clusters.keys() ^ at.latest.keys())}"
            )
        dropped = self._schedule.regroup(clusters, at.buffer)
        if not self._schedule.surveys:
            at.latest = {}
        self._take_out(dropped)
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
            self._take_out([updates[place] for place in opened.faults])
            for place, why in sorted(opened.faults.items()):
                lost = updates[place]
                client_id, version = lost.client_id, lost.base_version
                self._emit(Rejected(self._clock.now, client_id, lost.order, version, why))
            return
        self._strategy.report = {}
        params = self._strategy.aggregate(model, opened.updates)
        self._intake.complete(self._strategy.report, opened)
        require_vector(self._strategy, "aggregate", params, model.params.size)
        if not all_finite([params]):
            cause = likely_cause(self._learning_rates)
            raise Diverged(f"version {self.version + 1} is not finite{cause}")
        require_weights(self._strategy.report, len(updates), self.version + 1)
        ages = [model.age(update) for update in updates]
        # The order of these steps matters: Ctrl-C between any two must leave an existing version.
        self._take_out(updates)
        self._versions.publish(self._clock.share(params))
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
        for client_id in self._schedule.recall(self._orders.busy, self.version):
            order = self._orders.busy[client_id]
            if self._clock.recall(order):
                self._emit(Recalled(now, client_id, order.number, self.version))
        if self.version % self._eval_every == 0:
            self._evaluate()
        if self._on_clients.is_due(self.version):
            self._evaluate_on_clients()
        if self.version >= self._stop.num_versions:
            self.outcome.stopped = self.outcome.stopped or "num_versions"

    def _take_out(self, updates: Sequence[Update]) -> None:
        """Take updates out of the buffer."""
        gone = {id(update) for update in updates}
        self._at.buffer = [update for update in self._at.buffer if id(update) not in gone]
        for update in updates:
            self._versions.release(update.base_version)

    def _evaluate(self, *, final: bool = False) -> None:
        if self._evaluate_fn is None or (final and self._at.evaluated == self.version):
            return
        metrics = self._evaluate_fn(self.version, self._strategy.to_evaluate(self._versions.model))
        self._at.evaluated = self.version
        if not final:  # the last one comes after the run's end
            self._clock.work("evaluation")
        if not isinstance(metrics, Mapping):
            if self._stop.target_accuracy == math.inf:
                self._outbox.emit_later(self._clock.now, self.version, metrics)
                return
            metrics = metrics.result()  # which may end the run
        self._emit(Evaluated(self._clock.now, self.version, metrics))
        self._look_at(metrics.get("accuracy"))

    def _look_at(self, accuracy: float | None) -> None:
        """End the run if the accuracy is what it is to reach."""
        if accuracy is not None and accuracy >= self._stop.target_accuracy:
            # Another limit may have ended the run before this evaluation.
            self.outcome.stopped = self.outcome.stopped or "target_accuracy"

    # -- evaluation on clients --------------------------------------------------------------------

    def _evaluate_on_clients(self) -> None:
        """Choose the clients that measure the current version; they do so when they are free."""
        model = self._versions.model
        vector = self._strategy.to_evaluate(model)
        require_vector(self._strategy, "to_evaluate", vector, model.params.size)
        self._on_clients.plan(self.version, vector, self._at.updates)

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
        for client_id in list(self._orders.busy):
            del self._orders.busy[client_id]
            self._becomes_idle(client_id)
        if on_clients.version < self.version:
            self._evaluate_on_clients()
        until = clock.now + max(clock.now, LEAST_PATIENCE)
        with suppress(KeyboardInterrupt):
            while not self.outcome.asked_to_stop:
                on_clients.start()
                event = clock.next(until) if on_clients.orders else None
                if event is None:
                    break
                if not isinstance(event, Stray):  # the reply to an order that was called off
                    self._handle(event)
        for client_id in list(on_clients.waiting):  # late with something else
            on_clients.leave(client_id)
        for order in list(on_clients.orders.values()):
            self._lose(order, "the run ended")
        on_clients.tell()

    def _emit(self, event: Event) -> None:
        self._outbox.emit(event)
        if isinstance(event, ClientsEvaluated) and self._evaluate_fn is None:
            self._look_at(event.metrics.get("accuracy_mean"))


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
