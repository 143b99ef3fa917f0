"""Which client has which order, and what clients keep between their orders."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fl_app.core.pool import ClientPool
from fl_app.core.types import NO_EXTRA, Config, Extra, Order, State, Vector
from fl_app.core.vector import all_finite

NO_STATE: State = {}


class Orders:
    """The orders of a run.

    Args:
        clients: those that are free at the start.

    Attributes:
        idle: clients that are free.
        busy: client -> its training order, unless that expired.
    """

    def __init__(self, clients: Collection[int]) -> None:
        self.idle = ClientPool(clients)
        self.busy: dict[int, Order] = {}
        self._sequences: Counter[int] = Counter()  # client -> training orders given so far
        self._states: dict[int, State] = {}  # of clients
        self._number = 0  # of the next order

    @property
    def known(self) -> int:
        """Number of clients. Those that left are among them: they may come back."""
        return max(len(self.busy) + len(self.idle), len(self._sequences))

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
        order = Order(
            number=self._number,
            client_id=client_id,
            sequence=self._sequences[client_id],
            base_version=version,
            vector=vector,
            config={**config, "version": version},
            sent_at=now,
            state=self._states.get(client_id, NO_STATE),
            extra=extra,
            evaluates=evaluates,
        )
        self._number += 1
        self.idle.discard(client_id)
        if not evaluates:
            self._sequences[client_id] += 1
            self.busy[client_id] = order
        return order

    def keep(self, client_id: int, state: State) -> None:
        """Remember what a client keeps for its next order.

        A client that diverged keeps its earlier state, or it would diverge for ever.
        """
        if all_finite(state.values()):
            self._states.pop(client_id, None)
            if state:
                self._states[client_id] = state

    def lose_all(self, clients: Collection[int]) -> list[Order]:
        """Begin anew with these clients; returns the training orders that are lost by that."""
        lost = list(self.busy.values())
        self.idle, self.busy = ClientPool(clients), {}
        return lost

    def state_dict(self) -> dict[str, Any]:
        """The state between two events, as plain data and arrays."""
        return {
            "idle": list(self.idle),
            "busy": self.busy,
            "sequences": self._sequences,
            "client_states": self._states,
            "orders": self._number,
        }

    def load_state_dict(self, state: Mapping[str, Any], share: Callable[[Vector], Vector]) -> None:
        """Restore a state.

        Args:
            state: a result of `state_dict`; other keys are left alone.
            share: gives a vector the form in which clients can receive it.
        """
        self.idle = ClientPool(state["idle"])
        self.busy = shared(state["busy"].values(), share)
        self._sequences = Counter(state["sequences"])
        self._states = dict(state["client_states"])
        self._number = state["orders"]


def shared(orders: Iterable[Order], share: Callable[[Vector], Vector]) -> dict[int, Order]:
    """Orders by client, with vectors in the form in which clients can receive them."""
    return {
        order.client_id: replace(
            order,
            vector=share(order.vector),
            extra={name: share(vector) for name, vector in order.extra.items()},
        )
        for order in orders
    }
