"""What a run remembers between two events: versions of the model, clients' orders, and updates."""

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from fl_app.core.pool import ClientPool
from fl_app.core.snapshot import Remembers
from fl_app.core.types import (
    NO_EXTRA,
    Config,
    Extra,
    GlobalModel,
    Order,
    State,
    Update,
    Updates,
    Vector,
)
from fl_app.core.vector import all_finite


class Federation(Remembers):
    """The state of a federation between two events. Only the engine's parts change it.

    A client is free (`idle`), at work (`busy` or `evaluating`), or neither: offline, or still at
    work on an order that expired.

    Args:
        initial: w_0, shape ``(d,)``, float32.
        num_trainable: number of trainable entries, which lead the vector.
        clients: those that are free at the start.
        seed: of the schedule's draws.

    Attributes:
        version: number of the current version of the model.
        idle: clients that are free.
        busy: client -> its training order, unless that expired.
        evaluating: client -> its evaluate order.
        buffer: updates that wait, oldest arrival first.
        latest: the latest update of each client, until the schedule has its clusters.
        failures_in_a_row: orders that brought nothing since the last update.
        failing: clients whose last training order brought nothing.
        erring: clients whose code raised an error before the first update, once for each error.
        checkpointed: version of the last checkpoint.
        updates: uploads that arrived and were accepted.
        evaluated: version that the server evaluated last.
        rng: of the schedule's draws.
    """

    def __init__(
        self, initial: Vector, num_trainable: int, clients: Collection[int], seed: int
    ) -> None:
        self.version = 0
        self.idle = ClientPool(clients)
        self.busy: dict[int, Order] = {}
        self.evaluating: dict[int, Order] = {}
        self.buffer: list[Update] = []
        self.latest: dict[int, Update] = {}
        self.failures_in_a_row = self.checkpointed = self.updates = 0
        self.failing: set[int] = set()
        self.erring: list[int] = []
        self.evaluated: int | None = None
        self.rng = np.random.default_rng((seed, 0x5C4E))
        self._num_trainable = num_trainable
        self._versions: dict[int, Vector] = {0: initial}
        self._cited: Counter[int] = Counter()  # orders and buffered updates by base version
        self._orders = 0  # given so far
        self._sequences: Counter[int] = Counter()  # client -> training orders given so far
        self._states: dict[int, State] = {}  # of clients, between their orders

    @property
    def model(self) -> GlobalModel:
        """The current version as strategies see it, with the older ones that something cites."""
        return GlobalModel(
            params=self._versions[self.version],
            version=self.version,
            history=MappingProxyType(self._versions),
            num_trainable=self._num_trainable,
        )

    @property
    def online(self) -> set[int]:
        """Clients that are free or at work."""
        return {*self.idle, *self.busy, *self.evaluating}

    @property
    def known(self) -> int:
        """Number of clients. Those that left are among them: they may come back."""
        return max(len(self.busy) + len(self.idle), len(self._sequences))

    def publish(self, vector: Vector) -> None:
        """Make a vector the next version; Ctrl-C at any point leaves a current version."""
        self._versions[self.version + 1] = vector
        self.version += 1
        self._forget(self.version - 1)

    def cite(self, version: int) -> None:
        """Keep a version for one more order or buffered update."""
        self._cited[version] += 1

    def release(self, version: int) -> None:
        """One order or buffered update fewer cites this version; drop it after the last one."""
        self._cited[version] -= 1
        self._forget(version)

    def take_out(self, updates: Updates) -> None:
        """Take updates out of the buffer."""
        ids = {id(update) for update in updates}
        self.buffer = [update for update in self.buffer if id(update) not in ids]
        for update in updates:
            self.release(update.base_version)

    def give(
        self,
        client_id: int,
        version: int,
        vector: Vector,
        config: Config,
        now: float,
        extra: Extra = NO_EXTRA,
        *,
        evaluates: bool = False,
    ) -> Order:
        """A new order for a client, which is no longer free.

        Args:
            client_id: of the client.
            version: of the model.
            vector: what the client gets, shape ``(d,)``.
            config: further values.
            now: seconds.
            extra: further vectors by name.
            evaluates: whether it is to evaluate the model, and not to train it.
        """
        if client_id not in self.idle:
            raise ValueError(f"client {client_id!r} was chosen, and is not among the idle ones")
        order = Order(
            number=self._orders,
            client_id=client_id,
            sequence=self._sequences[client_id],
            base_version=version,
            vector=vector,
            config={**config, "version": version},
            sent_at=now,
            state=self._states.get(client_id, {}),
            extra=extra,
            evaluates=evaluates,
        )
        self._orders += 1
        self.idle.discard(client_id)
        if evaluates:
            self.evaluating[client_id] = order
        else:
            self._sequences[client_id] += 1
            self.busy[client_id] = order
            self.cite(version)
        return order

    def end(self, order: Order) -> None:
        """An order is no longer under way, if it was."""
        (self.evaluating if order.evaluates else self.busy).pop(order.client_id, None)

    def keep(self, client_id: int, state: State) -> None:
        """Store a client's state for its next order.

        A client that diverged keeps its earlier state, or it would diverge for ever.
        """
        plain = all(isinstance(array, np.ndarray | np.generic) for array in state.values())
        if plain and all_finite(state.values()):
            self._states.pop(client_id, None)
            if state:
                self._states[client_id] = state

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"idle": list(self.idle)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({**state, "idle": ClientPool(state["idle"])})

    def _forget(self, version: int) -> None:
        if self._cited[version] == 0:
            del self._cited[version]
            if version != self.version:
                self._versions.pop(version, None)
