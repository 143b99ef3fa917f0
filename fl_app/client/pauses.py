"""What a client keeps of an order while it waits for a fresh model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fl_app.client.flat import to_tensors, to_vector
from fl_app.core.types import Extra, State, Vector

NOTHING: Vector = np.empty(0, np.float32)  # in place of an upload that is not there yet
PAUSED = "paused"  # prefix of all names in the client state
EXTRA = "paused_extra."


@dataclass
class Progress:
    """How much of an order is done.

    Attributes:
        velocity: of momentum, if there is one; steps change it.
        steps: number of steps.
        loss: sum of their losses.
    """

    velocity: list[Tensor] | None
    steps: int = 0
    loss: float = 0.0


@dataclass(frozen=True)
class Paused:
    """An order in the middle of its local steps.

    Attributes:
        model: the client's model, shape ``(d,)``.
        received: w_o, shape ``(d,)``.
        extra: the order's extra vectors.
        progress: of the order.
    """

    model: NDArray[Any]
    received: NDArray[Any]
    extra: Extra
    progress: Progress

    def to_state(self) -> dict[str, NDArray[Any]]:
        """Arrays by name for the client's state."""
        progress = self.progress
        state = {PAUSED: self.model, "paused_received": self.received}
        state["paused_at"] = np.array([progress.steps, progress.loss])
        state |= {EXTRA + name: vector for name, vector in self.extra.items()}
        if progress.velocity is not None:
            state["paused_velocity"] = to_vector(progress.velocity)
        return state

    @classmethod
    def of_state(cls, state: State, trained: Sequence[Tensor]) -> "Paused":
        """The inverse of `to_state`.

        Args:
            state: in which an order paused.
            trained: of the model, with the shapes of the velocity.
        """
        steps, loss = state["paused_at"]
        velocity = state.get("paused_velocity")
        tensors = None if velocity is None else to_tensors(velocity, trained)
        progress = Progress(tensors, int(steps), float(loss))
        extra = {k.removeprefix(EXTRA): v for k, v in state.items() if k.startswith(EXTRA)}
        return cls(state[PAUSED], state["paused_received"], extra, progress)


def without_pause(state: State) -> dict[str, NDArray[Any]]:
    """A client's state without what a paused order left in it."""
    return {name: array for name, array in state.items() if not name.startswith(PAUSED)}
