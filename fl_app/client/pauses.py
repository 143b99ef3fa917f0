"""The state of an order that a client keeps while it waits for a fresh model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fl_app.client.flat import to_tensors, to_vector
from fl_app.core.types import Array, Extra, State, Vector

PAUSED = "paused"  # the client's model, and prefix of all names in the client state
RECEIVED = "paused_received"  # w_o
EXTRA = "paused_extra."


@dataclass
class Progress:
    """How much of an order a client has done.

    Attributes:
        velocity: of momentum, if there is one; steps change it.
        steps: number of steps.
        loss: sum of their losses.
    """

    velocity: list[Tensor] | None
    steps: int = 0
    loss: float = 0.0

    def to_state(self, model: Vector, received: Vector, extra: Extra) -> dict[str, Array]:
        """Arrays by name for the client's state.

        Args:
            model: the client's model, shape ``(d,)``.
            received: w_o, shape ``(d,)``.
            extra: the order's extra vectors.
        """
        state = {PAUSED: model, RECEIVED: received}
        state["paused_at"] = np.array([self.steps, self.loss])
        state |= {EXTRA + name: vector for name, vector in extra.items()}
        if self.velocity is not None:
            state["paused_velocity"] = to_vector(self.velocity)
        return state

    @classmethod
    def of_state(cls, state: State, trained: Sequence[Tensor]) -> "Progress":
        """The progress of an order that paused.

        Args:
            state: in which it paused.
            trained: of the model, with the shapes of the velocity.
        """
        steps, loss = state["paused_at"]
        velocity = state.get("paused_velocity")
        tensors = None if velocity is None else to_tensors(velocity, trained)
        return cls(tensors, int(steps), float(loss))


def without_pause(state: State) -> dict[str, Array]:
    """A client's state without what a paused order left in it."""
    return {name: array for name, array in state.items() if not name.startswith(PAUSED)}
