"""The event loop.

    Schedule.start -> Strategy.dispatch -> Clock.dispatch ====> client
    publish <- Strategy.aggregate <- Schedule.take <- buffer <- Clock.next <==== client

The first row is here, the second in `fl_app.engine.aggregation` and `fl_app.engine.arrivals`; what
they change is a `fl_app.engine.federation.Federation`. Nothing here knows whether time is virtual,
how orders travel or what the equations are.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import RunError, Stalled, require, require_at_least
from fl_app.core.events import Checkpointed, Dispatched, Rejected, Sink, Supplied
from fl_app.core.layout import check_vector
from fl_app.core.types import Order, Vector
from fl_app.engine.aggregation import Aggregation
from fl_app.engine.arrivals import Arrivals
from fl_app.engine.checks import order_extra, require_vector
from fl_app.engine.client_evaluation import ClientEvaluation
from fl_app.engine.clock import (
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
from fl_app.engine.evaluation import Evaluate, Evaluation
from fl_app.engine.federation import Federation, check_complete
from fl_app.engine.guard import Guard
from fl_app.engine.intake import Intake
from fl_app.engine.limits import Outcome, Stop
from fl_app.schedule import Schedule

__all__ = ["Engine", "Evaluate", "Outcome", "Stop", "check_complete"]

LEAST_PATIENCE = 600.0  # seconds that the last evaluation on clients may take without a deadline


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
        if upload_bytes is None:
            upload_bytes = initial.nbytes * (1 + len(strategy.upload_extra))
        self._fed = Federation(
            strategy,
            schedule,
            clock,
            initial,
            stop,
            num_trainable,
            client_evaluation or ClientEvaluation(),
            guard or Guard(),
            intake or Intake(),
            sinks,
            seed,
        )
        self._evaluation = Evaluation(self._fed, evaluate, eval_every)
        self._aggregation = Aggregation(self._fed, self._evaluation, learning_rates)
        self._arrivals = Arrivals(self._fed, tolerates, upload_bytes, learning_rates)
        self._fixed_bytes = fixed_bytes
        self._checkpoint = checkpoint
        self._checkpoint_every = checkpoint_every
        self._checkpoint_final = checkpoint_final
        self._lost_orders: list[Order] = []  # in flight when the previous server ended
        self.outcome = self._fed.outcome

    @property
    def clients(self) -> tuple[Collection[int], Collection[int]]:
        """Idle clients, and busy ones. A client still at work on an expired order is neither."""
        fed = self._fed
        return fed.orders.idle, fed.orders.busy.keys() | fed.on_clients.orders.keys()

    @property
    def version(self) -> int:
        """Version of the global model."""
        return self._fed.version

    @property
    def reached(self) -> dict[str, float]:
        """How far the run is, by the configuration keys of its limits."""
        return {
            "num_versions": self.version,
            "max_seconds": self._fed.clock.now,
            "max_updates": self._fed.updates,
        }

    def run(self) -> Outcome:
        """Run until a limit of `Stop` is reached; returns the outcome.

        Ctrl-C and a `RunError` end the run early: `stopped` and `error` of the outcome say so. Any
        other exception is raised.
        """
        fed, outcome = self._fed, self.outcome
        ended: float | None = None
        try:
            started = self._resume()
            self._evaluation.first()
            self._loop(started)
            if outcome.stopped == "interrupted":
                return outcome
            fed.ended = outcome.stopped
            if self._checkpoint_final:
                self._save()
            self._evaluation.last()
            ended = fed.clock.now
            self._evaluate_last_on_clients()
            fed.outbox.settle()
        except KeyboardInterrupt:
            outcome.asked_to_stop, outcome.stopped = True, "interrupted"
        except RunError as error:
            outcome.stopped = f"{type(error).__name__}: {error}"
            outcome.error = error
        finally:
            with suppress(RunError, KeyboardInterrupt):
                fed.outbox.settle()
            outcome.seconds = fed.clock.now if ended is None else ended
            self.close()
            outcome.version = self.version
            outcome.params = fed.strategy.to_evaluate(fed.versions.model)
            totals = (part.totals() for part in (fed.strategy, fed.intake, fed.clock))
            outcome.totals = {key: value for part in totals for key, value in part.items()}
        return outcome

    def stop(self) -> None:
        """Ask the run to save a checkpoint and end before the next event; from any thread."""
        self.outcome.asked_to_stop = True

    def close(self) -> None:
        """End workers and threads. `run` calls it; call it yourself only without `run`."""
        self._fed.clock.close()
        self._evaluation.close()

    def state_dict(self) -> dict[str, Any]:
        """The whole state between two events, for `fl_app.core.snapshot`."""
        return self._fed.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state before `run`; on real nodes the orders in flight are lost.

        Raises:
            ValueError: see `check_complete`.
        """
        self._lost_orders = self._fed.load_state_dict(state)

    # -- the loop ---------------------------------------------------------------------------------

    def _loop(self, started: bool) -> None:
        """Handle one event after the other until the run has ended.

        Args:
            started: whether clients were started since the last event.
        """
        fed, outcome = self._fed, self.outcome
        while not outcome.stopped:
            if not started:
                self._checkpoint_if_due()
                if outcome.asked_to_stop:
                    outcome.stopped = "interrupted"
                    return
                self._start()
                if self._aggregation.settle():  # the schedule may have waited for one that left
                    continue
            started = False
            event = fed.clock.next(fed.stop.seconds)
            if event is not None:
                self._handle(event)
            elif fed.clock.now >= fed.stop.seconds:
                fed.end("seconds")
            else:
                idle, benched = len(fed.orders.idle), len(fed.guard.benched)
                raise Stalled(
                    "nothing is under way and the schedule starts no client: "
                    f"{idle} idle, {len(fed.buffer)} updates waiting"
                    f"{f', {benched} clients benched' if benched else ''}"
                )

    def _start(self) -> None:
        """Give orders to the clients that the schedule starts now."""
        fed = self._fed
        fed.on_clients.start()
        if fed.on_clients.enabled:
            fed.schedule.evaluating(fed.on_clients.orders.keys())
        fed.clock.alarm(fed.schedule.wake(fed.clock.now))
        orders, model = fed.orders, fed.versions.model
        for client_id in fed.schedule.start(orders.idle, orders.busy, fed.buffer, fed.rng):
            vector, config = fed.strategy.dispatch(model, client_id)
            require_vector(fed.strategy, "dispatch", vector, model.params.size)
            extra = order_extra(fed.strategy, model, client_id)
            fed.clock.work("dispatch")
            now, version = fed.clock.now, model.version
            order = orders.give(client_id, version, vector, config, now, extra)
            fed.versions.cite(version)
            sent = vector.nbytes * (1 + len(extra))
            parts = fed.clock.dispatch(order)
            logged = (None, None) if parts is None else parts.logged
            fed.emit(Dispatched(now, client_id, order.number, version, sent, *logged))
            if order.sequence == 0:
                self._supply(order, self._fixed_bytes)

    def _handle(self, event: ClockEvent) -> None:
        """Handle what happened."""
        fed, arrivals = self._fed, self._arrivals
        match event:
            case Replied(order, reply):
                self._supply(order, reply.supplied)
                if arrivals.take(order, reply):
                    self._aggregation.settle()
                    self._count_updates()
            case Expired(order):
                if not order.evaluates:
                    del fed.orders.busy[order.client_id]
                arrivals.lose(order, "deadline passed")
            case Returned(order, supplied):
                self._supply(order, supplied)
                fed.becomes_idle(order.client_id)
                fed.reject(order, "late: its deadline had passed")
            case Stray():
                reason = "duplicate: this order was answered before"
                fed.emit(Rejected(fed.clock.now, reason=reason))
            case Alarm():
                pass  # the schedule is asked next
            case Joined(client_id):
                if client_id not in fed.guard.benched:
                    fed.orders.idle.add(client_id)
            case Left(client_id, lost, reason, traceback):
                fed.leaves(client_id)
                for order in lost:
                    if not order.evaluates:
                        fed.orders.busy.pop(order.client_id, None)
                    arrivals.lose(order, reason, traceback)
                fed.on_clients.tell()

    def _supply(self, order: Order, num_bytes: int) -> None:
        if num_bytes:
            now = self._fed.clock.now
            self._fed.emit(Supplied(now, order.client_id, order.number, num_bytes))

    def _count_updates(self) -> None:
        """End the run if enough updates arrived; called after the aggregations they allowed."""
        if self._fed.updates >= self._fed.stop.updates:
            self._fed.end("updates")

    # -- begin and end ----------------------------------------------------------------------------

    def _resume(self) -> bool:
        """Prepare a new or restored run; returns whether clients were started since its last event.

        A finished run that gets a later end must continue as if it had never stopped. If its end
        was a number of versions, another aggregation may be due. If its end was a time, the
        schedule has started clients already, and asking it again could draw other clients.
        """
        fed = self._fed
        ended, fed.ended = fed.ended, ""
        lost, self._lost_orders = self._lost_orders, []
        for order in lost:
            self._arrivals.lose(order, "the server was started anew")
        fed.on_clients.tell()
        if ended == "target_accuracy":
            fed.end(ended)
        elif self.version >= fed.stop.num_versions:
            fed.end("num_versions")
        elif ended == "num_versions":
            self._aggregation.settle()
        self._count_updates()
        return ended == "seconds" and not lost

    def _checkpoint_if_due(self) -> None:
        """Save a checkpoint if one is due or the run is to stop."""
        fed, every = self._fed, self._checkpoint_every
        due = every is not None and self.version // every > fed.checkpointed // every
        if due:
            fed.checkpointed = self.version
            fed.emit(Checkpointed(fed.clock.now, self.version))
        if due or self.outcome.asked_to_stop:
            self._save()

    def _save(self) -> None:
        if self._checkpoint is not None:
            self._fed.outbox.settle()  # a checkpoint knows how far the files have been written
            self._checkpoint(self.version)

    def _evaluate_last_on_clients(self) -> None:
        """Evaluate the last version on clients, now that training has ended.

        Training orders under way are called off, so that no evaluation waits for them. A node that
        does not answer is waited for until its deadline, and at most as long as the run took or ten
        minutes, whichever is longer. Ctrl-C ends the wait; the scores that have come count.
        """
        fed, on_clients, clock = self._fed, self._fed.on_clients, self._fed.clock
        if not on_clients.enabled:
            return
        clock.call_off_training()
        for client_id in list(fed.orders.busy):
            del fed.orders.busy[client_id]
            fed.becomes_idle(client_id)
        if on_clients.version < self.version:
            self._evaluation.on_clients()
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
            self._arrivals.lose(order, "the run ended")
        on_clients.tell()
