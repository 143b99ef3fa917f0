"""Handles the ends of orders, makes versions and evaluates them."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fl_app.core.algorithm import Algorithm
from fl_app.core.bugs import place_of
from fl_app.core.errors import ClientError, RunError, Stalled
from fl_app.core.events import (
    Aggregated,
    Arrived,
    Clustered,
    Evaluated,
    Event,
    Failed,
    Paused,
    Recalled,
    Refreshed,
    Rejected,
)
from fl_app.core.types import NO_EXTRA, NO_VECTOR, Order, Reply, Update, Updates, Upload, Vector
from fl_app.engine import checks
from fl_app.engine.client_evaluation import ClientEvaluation
from fl_app.engine.clock import Clock
from fl_app.engine.federation import Federation
from fl_app.engine.guard import Guard, Intake
from fl_app.engine.outbox import Evaluate, Outbox
from fl_app.schedule import Schedule

log = logging.getLogger(__name__)

MAX_LOGGED_ERRORS = 20  # errors in clients' code whose tracebacks are logged
MAX_INITIAL_ERRORS = 10  # end a run before its first update, if each online client made one


@dataclass(frozen=True)
class Stop:
    """When a run ends: at the first of these limits; without any, when it is asked to.

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
        asked_to_stop: whether `Engine.ask_to_stop` or Ctrl-C asked for the end, perhaps too late.
        totals: numbers of the strategy about the whole run.
        ordered: keys of the configs that the strategy has sent with orders.
    """

    params: Vector
    version: int = 0
    seconds: float = 0.0
    stopped: str = ""
    error: RunError | None = None
    asked_to_stop: bool = False
    totals: dict[str, float] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)


@dataclass(kw_only=True, eq=False)
class Versions:
    """The part of the `Engine` that handles the ends of orders, aggregates and evaluates."""

    strategy: Algorithm
    schedule: Schedule
    clock: Clock
    stop: Stop
    guard: Guard = field(default_factory=Guard)
    intake: Intake = field(default_factory=Intake)
    client_evaluation: ClientEvaluation = field(default_factory=ClientEvaluation)
    tolerates: bool = True
    upload_bytes: int = 0
    evaluate: Evaluate | None = None
    eval_every: int = 1

    outcome: Outcome = field(init=False)
    _fed: Federation = field(init=False)
    _outbox: Outbox = field(init=False)
    _emit: Callable[[Event], None] = field(init=False)
    _places: set[tuple[str, ...]] = field(init=False, default_factory=set)  # of errors logged

    # -- the ends of orders -----------------------------------------------------------------------

    def _take(self, order: Order, reply: Reply) -> bool:
        """Handle a reply that came in time; returns whether it brought an update."""
        client_id, upload = order.client_id, reply.upload
        if upload is not None and not order.evaluates:
            self._fed.keep(client_id, upload.state)
            if not upload.done and 0 < upload.progress < 1:
                self._refresh(order, upload)
                return False
        self._fed.end(order)
        self._fed.idle.add(client_id)
        if order.evaluates:
            if problem := self.client_evaluation.take(order, reply):
                self._lose(order, problem, reply.traceback)
            return False
        if upload is None:
            self._lose(order, reply.error, reply.traceback)
            return False
        return self._arrive(order, upload)

    def _refresh(self, order: Order, upload: Upload) -> None:
        """Answer a client that paused, with a fresh model if there is a newer version."""
        model, now = self._fed.model, self.clock.now
        client_id, base_version = order.client_id, order.base_version
        self._emit(Paused(now, client_id, order.number, base_version, upload.progress))
        self.clock.work("dispatch")
        vector, config, extra = NO_VECTOR, {**order.config, "continues": True}, NO_EXTRA
        if model.version > base_version:
            paused = Update.of(upload, client_id, base_version, order.number, now - order.sent_at)
            vector, fresh_config = self.strategy.refresh(model, paused)
            checks.require_vector(self.strategy, "refresh", vector, model.params.size)
            config |= {**fresh_config, "fresh_version": model.version}
            extra = checks.order_extra(self.strategy, model, client_id)
            sent = vector.nbytes * (1 + len(extra))
            now = self.clock.now
            self._emit(Refreshed(now, client_id, order.number, model.version, sent))
        order = replace(order, vector=vector, config=config, state=upload.state, extra=extra)
        self._fed.busy[client_id] = order
        self.clock.continue_order(order, upload.progress)

    def _arrive(self, order: Order, upload: Upload) -> bool:
        """Accept an upload into the buffer, or refuse it; returns whether it was accepted."""
        fed, model, now = self._fed, self._fed.model, self.clock.now
        base_version = order.base_version if upload.base_version is None else upload.base_version
        seconds = now - order.sent_at
        steps = int(order.config.get("local_steps", 0))
        update = Update.of(upload, order.client_id, base_version, order.number, seconds, steps)
        problem = checks.malformed(self.strategy, model, order, upload)
        reason = (
            problem
            or self.intake.refuse(model, update)
            or self.guard.refuse(model, update)
            or checks.admitted(self.strategy, model, update)
        )
        if reason:
            traceback = "" if checks.diverged(problem) else problem
            self._lose(order, reason, traceback, refused=True)
            return False
        fed.failures_in_a_row = 0
        fed.failing.discard(order.client_id)
        fed.updates += 1
        fed.cite(base_version)
        fed.release(order.base_version)
        if self.intake.replaces:
            for waiting in [each for each in fed.buffer if each.client_id == order.client_id]:
                self._drop(waiting, "a newer upload of its client came before its aggregation")
        fed.buffer.append(update)
        if len(fed.buffer) > 1000 + 10 * max(fed.known, getattr(self.schedule, "buffer_size", 0)):
            raise Stalled(f"{len(fed.buffer)} updates wait, of which the schedule takes none")
        if self.schedule.surveys:
            # Stored as a gradient: its base version may be forgotten before the survey.
            gradient = model.gradient(update)
            fed.latest[update.client_id] = replace(update, vector=gradient, kind="gradient")
        self._emit(
            Arrived(
                now,
                order.client_id,
                order.number,
                base_version,
                age=model.age(update),
                loss=update.loss if math.isfinite(update.loss) else None,
                bytes=round(self.upload_bytes * self.strategy.part(order.client_id)),
            )
        )
        return True

    def _drop(self, update: Update, reason: str) -> None:
        """Take an update out of the buffer that will not be aggregated."""
        self._fed.take_out([update])
        identity = (update.client_id, update.order, update.base_version)
        self._emit(Rejected(self.clock.now, *identity, reason))

    def _lose(self, order: Order, why: str, traceback: str = "", *, refused: bool = False) -> None:
        """End an order that brought no update, or no scores.

        Args:
            order: the order.
            why: the reason, for the log.
            traceback: of an error in the client's code, if that is the reason.
            refused: whether an upload came and was refused; else the client failed.
        """
        fed = self._fed
        fed.end(order)
        if order.evaluates:
            why = f"evaluation: {why}"
        else:
            fed.release(order.base_version)
            fed.failures_in_a_row += 1
            fed.failing.add(order.client_id)
        identity = (self.clock.now, order.client_id, order.number, order.base_version, why)
        self._emit(Rejected(*identity) if refused else Failed(*identity, bool(traceback)))
        if traceback:
            self._log_client_error(order, why, traceback)
        if order.evaluates:
            self.client_evaluation.publish()
            return
        if fed.failures_in_a_row > 100 + 10 * fed.known:
            cause = checks.LIKELY_CAUSE if refused and checks.diverged(why) else ""
            raise Stalled(
                f"{fed.failures_in_a_row} orders in a row brought nothing usable, "
                f"the last one: {why}{cause}"
            )

    def _log_client_error(self, order: Order, reason: str, traceback: str) -> None:
        """Log an error in a client's code, once for each place in the code.

        Raises:
            ClientError: errors are not tolerated, or no client has brought anything else.
        """
        label, place = f"client {order.client_id}, order {order.number}", place_of(traceback)
        if place not in self._places and len(self._places) < MAX_LOGGED_ERRORS:
            self._places.add(place)
            log.error("%s: the client's code raised an error:\n%s", label, traceback)
        if not self.tolerates:
            raise ClientError(
                f"{label}: {reason}. With failures=tolerate such an order has failed, and the run "
                "goes on"
            )
        fed = self._fed
        if not fed.updates:
            fed.erring.append(order.client_id)
        hopeless = not fed.updates and fed.online <= {*fed.erring}
        if hopeless and len(fed.erring) >= MAX_INITIAL_ERRORS:
            raise ClientError(
                f"{len(fed.erring)} orders failed, and none brought an update: {reason}"
            )

    # -- versions ----------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Aggregate what the schedule takes, or form clusters; returns whether it did anything."""
        fed, changed = self._fed, False
        self.schedule.tell_time(self.clock.now)
        while not self.outcome.stopped:
            if self.schedule.survey(fed.version, fed.buffer):
                self._cluster()
            elif updates := checks.taken(self.schedule, fed.buffer):
                self._aggregate(updates)
            else:
                break
            changed = True
        return changed

    def _cluster(self) -> None:
        """Let the strategy put the present clients into clusters; this makes no version."""
        fed = self._fed
        present = sorted(fed.latest.keys() & fed.online)
        fed.latest = {client_id: fed.latest[client_id] for client_id in present}
        clusters = self.strategy.cluster(fed.model, list(fed.latest.values()))
        if clusters.keys() != fed.latest.keys():
            raise ValueError(
                f"cluster() must put each of the {len(present)} clients that it is shown into one "
                f"cluster, and no others: {sorted(clusters.keys() ^ fed.latest.keys())}"
            )
        dropped = self.schedule.regroup(clusters, fed.buffer)
        if not self.schedule.surveys:
            fed.latest = {}
        fed.take_out(dropped)
        self._emit(
            Clustered(
                self.clock.now,
                fed.version,
                client=list(clusters),
                cluster=list(clusters.values()),
                dropped=[update.client_id for update in dropped],
                order=[update.order for update in dropped],
            )
        )

    def _aggregate(self, updates: Updates) -> None:
        """Make the next version from these updates."""
        fed, strategy, clock = self._fed, self.strategy, self.clock
        model = fed.model
        opened = self.intake.open(model, updates)
        if opened.faults:
            for index, reason in sorted(opened.faults.items()):
                self._drop(updates[index], reason)
            return
        strategy.report = {}
        with np.errstate(over="ignore", invalid="ignore"):  # a version that diverged is refused
            params = strategy.aggregate(model, opened.updates)
        self.intake.complete(strategy.report, opened)
        checks.require_version(strategy, params, model, len(updates))
        # The order of these steps matters: Ctrl-C between any two must leave an existing version.
        fed.take_out(updates)
        fed.publish(clock.share(params))
        clock.work("aggregation")
        now = clock.now
        self._emit(
            Aggregated(
                now,
                fed.version,
                client=[update.client_id for update in updates],
                order=[update.order for update in updates],
                age=[model.age(update) for update in updates],
                report=strategy.report,
            )
        )
        for client_id in self.schedule.recall(fed.busy, fed.version):
            order = fed.busy[client_id]
            if clock.recall(order):
                self._emit(Recalled(now, client_id, order.number, fed.version))
        if fed.version % self.eval_every == 0:
            self._evaluate_on_server()
        if fed.version % self.client_evaluation.every == 0:
            self._evaluate_on_clients()
        if fed.version >= self.stop.num_versions:
            self._end("num_versions")

    def _evaluate_on_server(self, *, final: bool = False) -> None:
        fed, clock = self._fed, self.clock
        if self.evaluate is None:
            return
        self._outbox.settle()  # one version is measured at a time
        metrics = self.evaluate(fed.version, checks.evaluated(self.strategy, fed.model))
        fed.evaluated = fed.version
        if not final:  # the last one comes after the run's end
            clock.work("evaluation")
        if not isinstance(metrics, Mapping):
            if self.stop.target_accuracy == math.inf:
                self._outbox.emit_later(clock.now, fed.version, metrics)
                return
            metrics = metrics.result()  # which may end the run
        self._emit(Evaluated(clock.now, fed.version, metrics))
        self._check_target(metrics.get("accuracy"))

    def _evaluate_on_clients(self) -> None:
        """Choose the clients that measure the current version; they do so when they are free."""
        self.client_evaluation.plan(checks.evaluated(self.strategy, self._fed.model))

    def _check_accuracy_on_clients(self, metrics: Mapping[str, float]) -> None:
        """End the run at the accuracy on clients, if the server measures none."""
        if self.evaluate is None:
            self._check_target(metrics.get("accuracy_mean"))

    def _check_target(self, accuracy: float | None) -> None:
        if accuracy is not None and accuracy >= self.stop.target_accuracy:
            self._end("target_accuracy")

    def _end(self, limit: str) -> None:
        """End the run, unless another limit has ended it."""
        self.outcome.stopped = self.outcome.stopped or limit
