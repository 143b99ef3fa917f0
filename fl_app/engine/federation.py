"""What the parts of the engine share: the objects of a run, and what it remembers."""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np

from fl_app.core.algorithm import Algorithm
from fl_app.core.events import Event, Rejected, Sink
from fl_app.core.types import Order, Update, Vector
from fl_app.engine.client_evaluation import ClientEvaluation
from fl_app.engine.clock import Clock
from fl_app.engine.guard import Guard
from fl_app.engine.intake import Intake
from fl_app.engine.limits import Outcome, Stop
from fl_app.engine.orders import Orders
from fl_app.engine.outbox import Outbox
from fl_app.engine.unkept import UnkeptAttributes
from fl_app.engine.versions import Versions
from fl_app.schedule import Schedule

# What the engine itself remembers between two events.
REMEMBERED = (
    *("buffer", "latest", "failures_in_a_row", "checkpointed", "updates", "ended", "evaluated"),
)
# What restores its own state without help.
PARTS = ("guard", "schedule", "strategy", "intake")


@dataclass(eq=False)
class Federation:
    """One federation between two events. The engine's parts change it; nobody else does.

    Args:
        strategy: computes the next version from updates.
        schedule: decides when clients start and when updates are aggregated.
        clock: time and transport.
        initial: w_0, shape ``(d,)``, float32.
        stop: when the run ends.
        num_trainable: number of trainable entries, which lead the vector; default all.
        on_clients: evaluations on clients.
        guard: bounds on uploads.
        intake: which uploads come in, and what of them the strategy is shown.
        sinks: receive the events.
        seed: of the schedule's draws.

    Attributes:
        versions: of the model.
        orders: of clients.
        buffer: updates that wait, oldest arrival first.
        latest: the latest update of each client, until the schedule has its clusters.
        failures_in_a_row: orders that brought nothing since the last update.
        checkpointed: version of the last checkpoint.
        updates: uploads that arrived and were accepted.
        ended: why the run ended, for its last checkpoint.
        evaluated: version that was evaluated last.
        outcome: how the run ended.
    """

    strategy: Algorithm
    schedule: Schedule
    clock: Clock
    initial: InitVar[Vector]
    stop: Stop
    num_trainable: InitVar[int | None]
    on_clients: ClientEvaluation
    guard: Guard
    intake: Intake
    sinks: InitVar[Sequence[Sink]]
    seed: InitVar[int]

    def __post_init__(
        self, initial: Vector, num_trainable: int | None, sinks: Sequence[Sink], seed: int
    ) -> None:
        self.outbox = Outbox(sinks)
        self.rng = np.random.default_rng((seed, 0x5C4E))
        self._unkept = UnkeptAttributes(self.strategy, self.schedule)
        size = initial.size if num_trainable is None else num_trainable
        self.versions = Versions(self.clock.share(initial), size)
        self.orders = Orders(self.clock.clients())
        self.buffer: list[Update] = []
        self.latest: dict[int, Update] = {}
        self.failures_in_a_row = self.checkpointed = self.updates = 0
        self.ended = ""
        self.evaluated: int | None = None
        self.outcome = Outcome(params=initial)
        most_examples = self.guard.max_examples or math.inf
        self.on_clients.join(self.orders, self.clock, self.outbox.emit, most_examples)

    @property
    def version(self) -> int:
        """Version of the global model."""
        return self.versions.number

    def emit(self, event: Event) -> None:
        """Tell the sinks what happened."""
        self.outbox.emit(event)

    def end(self, limit: str) -> None:
        """End the run, unless another limit has ended it."""
        self.outcome.stopped = self.outcome.stopped or limit

    def becomes_idle(self, client_id: int) -> None:
        """A client is free, unless it is benched."""
        if client_id not in self.guard.benched:
            self.orders.idle.add(client_id)
            self.on_clients.free(client_id)

    def leaves(self, client_id: int) -> None:
        """A client gets no order any more."""
        self.orders.idle.discard(client_id)
        self.on_clients.leave(client_id)

    def reject(self, order: Order, reason: str) -> None:
        """Tell that an order's upload is not used."""
        now = self.clock.now
        self.emit(Rejected(now, order.client_id, order.number, order.base_version, reason))

    def take_out(self, updates: Sequence[Update]) -> None:
        """Take updates out of the buffer."""
        gone = {id(update) for update in updates}
        self.buffer = [update for update in self.buffer if id(update) not in gone]
        for update in updates:
            self.versions.release(update.base_version)

    def state_dict(self) -> dict[str, Any]:
        """The whole state between two events, for `fl_app.core.snapshot`."""
        return {
            "unkept": self._unkept.notice(),
            "rng": self.rng,
            **self.versions.state_dict(),
            **self.orders.state_dict(),
            **{name: getattr(self, name) for name in REMEMBERED},
            "client_evaluation": self.on_clients.state_dict() if self.on_clients.enabled else None,
            **{name: getattr(self, name).state_dict() for name in PARTS},
            "clock": self.clock.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[Order]:
        """Restore a state; returns the orders that were in flight and are lost.

        Raises:
            ValueError: see `check_complete`.
        """
        check_complete(state)
        shared: dict[int, Vector] = {}

        def share(vector: Vector) -> Vector:
            if vector.size and id(vector) not in shared:
                shared[id(vector)] = self.clock.share(vector)
            return shared.get(id(vector), vector)

        self.rng = state["rng"]
        self.versions.load_state_dict(state, share)
        self.orders.load_state_dict(state, share)
        for name in REMEMBERED:
            setattr(self, name, copy(state[name]))
        for name in PARTS:
            getattr(self, name).load_state_dict(state.get(name, {}))
        evaluating: dict[int, Order] = {}
        if state.get("client_evaluation"):
            self.on_clients.load_state_dict(state["client_evaluation"], share)
            evaluating = self.on_clients.orders
        orders = {o.number: o for o in (*self.orders.busy.values(), *evaluating.values())}
        if self.clock.load_state_dict(state["clock"], orders):
            return []
        lost = [*self.orders.lose_all(self.clock.clients()), *evaluating.values()]
        for client_id in list(self.on_clients.waiting):
            self.on_clients.leave(client_id)
        return lost


def check_complete(state: Mapping[str, Any]) -> None:
    """Refuse a state of `Federation.state_dict` in which changed attributes are missing.

    Raises:
        ValueError: attributes have changed that no checkpoint holds.
    """
    if unkept := state["unkept"]:
        raise ValueError(
            f"the checkpoint is not complete: {', '.join(unkept)} had changed and is not in it. "
            "Keep what a strategy learns in its self.state, and what a schedule remembers in its "
            "state_dict(), and start anew"
        )
