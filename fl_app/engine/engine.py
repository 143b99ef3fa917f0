"""The event loop.

    Schedule.start -> Strategy.dispatch -> Clock.dispatch ====> client
    publish <- Strategy.aggregate <- Schedule.take <- buffer <- Clock.next <==== client

`fl_app.engine.versions` handles the ends of orders, aggregates and evaluates.
This module does not know whether time is virtual or how orders travel. Of the equations it knows
the keys of orders (`fl_app.engine.checks`) and the widths of sub-models.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass
from typing import Any

from fl_app.core.errors import RunError, ServerError, Stalled
from fl_app.core.events import Checkpointed, Dispatched, Rejected, Sink
from fl_app.core.hyper import at_least
from fl_app.core.layout import check_vector
from fl_app.core.pool import ClientPool
from fl_app.core.types import Order, Vector
from fl_app.engine import checks
from fl_app.engine.clock import Alarm, ClockEvent, Expired, Joined, Left, Replied, Returned, Stray
from fl_app.engine.federation import Federation
from fl_app.engine.outbox import Evaluate, Outbox
from fl_app.engine.versions import Outcome, Stop, Versions

__all__ = ["Engine", "Evaluate", "Outcome", "Stop"]

# Parts that have a state, beside the clock.
PARTS = ("_fed", "strategy", "schedule", "guard", "client_evaluation")

MIN_PATIENCE = 600.0  # seconds that the last evaluation on clients may take without a deadline


@dataclass(kw_only=True, eq=False)
class Engine(Versions):
    """Runs one federation.

    Args:
        strategy: computes the next version from updates.
        schedule: decides when clients start and when updates are aggregated.
        clock: time and transport.
        initial: w_0, shape ``(d,)``, float32.
        stop: when the run ends.
        num_trainable: number of trainable entries, which lead the vector; default all.
        evaluate: maps (version, vector) to metrics, among them ``"accuracy"`` and ``"loss"``; or to
            a future of them, if the measurement runs beside the engine.
        eval_every: versions between evaluations. The first and the last version are evaluated, too.
        client_evaluation: evaluations on clients; the last version is evaluated, too. Default none.
        guard: bounds on uploads, checked before `Algorithm.admit`.
        tolerates: whether an error in a client's code fails only its order; False = the first one
            ends the run.
        intake: decides which uploads are accepted, and how the strategy sees them. Default: all,
            unchanged.
        upload_bytes: bytes of an upload with its extra vectors; default: each as large as a model.
        checkpoint: saves a checkpoint (`state_dict`); called with the version.
        checkpoint_every: versions between checkpoints; None = only at `ask_to_stop`.
        sinks: receive the events; the list may grow until `run`.
        seed: seed of the schedule's draws.

    Attributes:
        outcome: how the run ended; while it goes on, `stopped` is empty.

    Raises:
        ValueError: an argument is out of its bounds.
    """

    initial: InitVar[Vector]
    num_trainable: InitVar[int | None] = None
    checkpoint: Callable[[int], None] | None = None
    checkpoint_every: int | None = None
    sinks: InitVar[Sequence[Sink]] = ()
    seed: InitVar[int] = 0

    def __post_init__(
        self, initial: Vector, num_trainable: int | None, sinks: Sequence[Sink], seed: int
    ) -> None:
        key = "eval_every"
        at_least(1).check(key, self.eval_every, "versions cannot be evaluated more than once")
        if problem := check_vector(initial, initial.size):
            raise ValueError(f"initial model: {problem}")
        if not self.upload_bytes:
            self.upload_bytes = initial.nbytes * (1 + len(self.strategy.upload_extra))
        self.strategy.shares = self.schedule.shares
        self._outbox = Outbox(sinks)
        self._emit = self._outbox.emit
        size = initial.size if num_trainable is None else num_trainable
        clock = self.clock
        self._fed = Federation(clock.share(initial), size, clock.clients(), seed)
        self.client_evaluation.join(
            self._fed, clock, self._emit, self._check_accuracy_on_clients, self.guard.max_examples
        )
        self._lost_orders: list[Order] = []  # in flight when the previous server ended
        self.outcome = Outcome(params=initial)

    @property
    def clients(self) -> tuple[Collection[int], Collection[int]]:
        """Idle clients, and busy ones. A client still at work on an expired order is neither."""
        return self._fed.idle, self._fed.busy.keys() | self._fed.evaluating.keys()

    @property
    def version(self) -> int:
        """Version of the global model."""
        return self._fed.version

    def run(self) -> Outcome:
        """Run until a limit of `Stop` is reached; returns the outcome.

        Ctrl-C, a `RunError` and an error in the code of a strategy, schedule or evaluation end the
        run early: `stopped` and `error` of the outcome say so.

        Raises:
            OSError: the disk fails, or the network.
            MemoryError: there is too little memory.
        """
        fed, outcome = self._fed, self.outcome
        ended: float | None = None
        try:
            for order in self._lost_orders:
                self._lose(order, "the server was started anew")
            self.client_evaluation.publish()
            if fed.evaluated is None:
                self._evaluate_on_server()
            self._loop()
            if outcome.stopped == "interrupted":
                return outcome
            if self.client_evaluation.every < math.inf:  # if killed in it, the last version stays
                self._checkpoint_if_due()
            if fed.evaluated != fed.version:
                self._evaluate_on_server(final=True)
            ended = self.clock.now
            self._evaluate_last_on_clients()
            self._outbox.settle()
        except KeyboardInterrupt:
            outcome.asked_to_stop, outcome.stopped = True, "interrupted"
        except RunError as error:
            outcome.stopped = f"{type(error).__name__}: {error}"
            outcome.error = error
        except (OSError, MemoryError):  # the machine's: the run may be resumed later
            raise
        except Exception as error:
            self._record_error(error)
        finally:
            with suppress(KeyboardInterrupt):
                try:
                    self._outbox.settle()
                except Exception as error:
                    self._record_error(error)
            outcome.seconds = self.clock.now if ended is None else ended
            self.close()
            outcome.version = self.version
            outcome.params = fed.model.params
            try:
                outcome.params = checks.evaluated(self.strategy, fed.model)
                outcome.totals = checks.totals(self.strategy)
            except Exception as error:
                self._record_error(error)
        return outcome

    def _record_error(self, error: Exception) -> None:
        """End the run, as the code of a strategy, a schedule or an evaluation raised an error."""
        outcome = self.outcome
        if outcome.error is None:
            outcome.stopped = f"{type(error).__name__}: {error}"
            outcome.error = ServerError(outcome.stopped)
            outcome.error.__cause__ = error

    def ask_to_stop(self) -> None:
        """Ask the run to save a checkpoint and end before the next event; from any thread."""
        self.outcome.asked_to_stop = True

    def close(self) -> None:
        """End workers and threads. `run` calls it; call it yourself only without `run`."""
        self.clock.close()

    def state_dict(self) -> dict[str, Any]:
        """The whole state between two events, for `fl_app.core.snapshot`."""
        parts = {name: getattr(self, name).state_dict() for name in (*PARTS, "clock")}
        return {**parts, "stopped": "" if self.outcome.error else self.outcome.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state before `run`; on real nodes the orders in flight are lost."""
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])
        fed, self.outcome.stopped = self._fed, state["stopped"]
        orders = {o.number: o for o in (*fed.busy.values(), *fed.evaluating.values())}
        if not self.clock.load_state_dict(state["clock"], orders):
            fed.idle = ClientPool(self.clock.clients())
            self._lost_orders = list(orders.values())
            self.client_evaluation.waiting.clear()
            self.client_evaluation.version = -1  # which the last version exceeds

    # -- the loop ---------------------------------------------------------------------------------

    def _loop(self) -> None:
        """Handle one event after the other until the run has ended."""
        fed, clock, outcome = self._fed, self.clock, self.outcome
        while not outcome.stopped:
            self._checkpoint_if_due()
            if outcome.asked_to_stop:
                outcome.stopped = "interrupted"
                return
            alarm = self._start()
            if self._settle():  # the schedule may have waited for one that left
                continue
            event = clock.next(self.stop.seconds, alarm)
            if event is not None:
                self._handle(event)
            elif clock.now >= self.stop.seconds:
                self._end("seconds")
            else:
                raise Stalled(
                    "nothing is under way and the schedule starts no client: "
                    f"{len(fed.idle)} are online and idle, {len(fed.buffer)} updates wait"
                )

    def _start(self) -> float:
        """Give orders to the clients that the schedule starts now.

        Returns:
            When the schedule is to be asked again, seconds; inf = never.
        """
        fed, clock = self._fed, self.clock
        self.client_evaluation.start()
        self.schedule.observe(fed.evaluating.keys(), fed.failing)
        alarm = self.schedule.wake(clock.now)
        model = fed.model
        chosen = self.schedule.start(fed.idle, fed.busy, fed.buffer, fed.rng)
        for client_id in checks.started(self.schedule, chosen):
            vector, config = checks.dispatched(self.strategy, model, client_id)
            self.outcome.ordered |= config.keys()
            work = checks.work(self.schedule, client_id)
            if checks.RATE in config and checks.RATE in work:
                work = {**work, checks.RATE: float(config[checks.RATE]) * float(work[checks.RATE])}
            config = {**config, **work}
            checks.order_config(self.strategy, config)
            if widths := self.strategy.widths:
                config |= widths.config(client_id, model.version)
            extra = checks.order_extra(self.strategy, model, client_id)
            clock.work("dispatch")
            now = clock.now
            order = fed.give(client_id, model.version, vector, config, now, extra)
            sent = round(vector.nbytes * (1 + len(extra)) * self.strategy.part(client_id))
            parts = clock.dispatch(order)
            logged = () if parts is None else parts.logged
            self._emit(Dispatched(now, client_id, order.number, model.version, sent, *logged))
        return alarm

    def _handle(self, event: ClockEvent) -> None:
        """Handle one event."""
        fed = self._fed
        match event:
            case Replied(order, reply):
                if self._take(order, reply):
                    self._settle()  # the aggregations that the last update allows come first
                    if fed.updates >= self.stop.updates:
                        self._end("updates")
            case Expired(order):
                self._lose(order, "deadline passed")
            case Returned(order):
                fed.idle.add(order.client_id)
                identity = (order.client_id, order.number, order.base_version)
                self._emit(Rejected(self.clock.now, *identity, "late: its deadline had passed"))
            case Stray():
                reason = "duplicate: this order was answered before"
                self._emit(Rejected(self.clock.now, reason=reason))
            case Alarm():
                pass  # the schedule is asked next
            case Joined(client_id):
                fed.idle.add(client_id)
            case Left(client_id, lost, reason, traceback):
                fed.idle.discard(client_id)
                self.client_evaluation.waiting.discard(client_id)
                for order in lost:
                    self._lose(order, reason, traceback)
                self.client_evaluation.publish()

    # -- begin and end ----------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        """Save a checkpoint if one is due or the run is to stop."""
        fed, every = self._fed, self.checkpoint_every
        due = every is not None and fed.version // every > fed.checkpointed // every
        if due:
            fed.checkpointed = fed.version
            self._emit(Checkpointed(self.clock.now, fed.version))
        if self.checkpoint is not None and (due or self.outcome.asked_to_stop):
            self._outbox.settle()  # a checkpoint knows how far the files have been written
            self.checkpoint(self._fed.version)

    def _evaluate_last_on_clients(self) -> None:
        """Evaluate the last version on clients, now that training has ended.

        Training orders under way are called off, so that no evaluation waits for them. The server
        waits for a node until its deadline, and at most as long as the run took or ten minutes,
        whichever is longer. Ctrl-C ends the wait; the scores that have come count.
        """
        fed, evaluation, clock = self._fed, self.client_evaluation, self.clock
        if evaluation.every == math.inf:
            return
        clock.call_off_training()
        for client_id in list(fed.busy):
            del fed.busy[client_id]
            fed.idle.add(client_id)
        if evaluation.version < fed.version:
            self._evaluate_on_clients()
        deadline = clock.now + max(clock.now, MIN_PATIENCE)
        with suppress(KeyboardInterrupt):
            while not self.outcome.asked_to_stop:
                evaluation.start()
                event = clock.next(deadline) if fed.evaluating else None
                if event is None:
                    break
                if not isinstance(event, Stray):  # the reply to an order that was called off
                    self._handle(event)
        evaluation.waiting.clear()  # clients that are late with another order
        for order in list(fed.evaluating.values()):
            self._lose(order, "the run ended")
        evaluation.publish()
