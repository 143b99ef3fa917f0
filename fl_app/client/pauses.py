"""What a client keeps of an order while it waits for a fresh model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.core.types import Extra, State, Vector

PAUSED = "paused"  # prefix of all names in the client state
EXTRA = "paused_extra."


@dataclass(frozen=True, kw_only=True)
class Paused:
    """An order in the middle of its local steps.

    Attributes:
        model: the client's model, shape ``(d,)``.
        received: w_o, from which the upload is computed; None if it is the model itself.
        extra: the order's extra vectors.
        steps: number of steps taken, >= 1.
        loss: sum of their losses.
        anchor: the received parameters, if a term of the gradient needs them.
        velocity: of momentum, if there is one.
    """

    model: NDArray[Any]
    received: NDArray[Any] | None
    extra: Extra
    steps: int
    loss: float
    anchor: NDArray[Any] | None
    velocity: NDArray[Any] | None

    def to_state(self) -> dict[str, NDArray[Any]]:
        """Arrays by name for the client's state."""
        arrays = {
            PAUSED: self.model,
            "paused_at": np.array([self.steps, self.loss]),
            "paused_received": self.received,
            **{EXTRA + name: vector for name, vector in self.extra.items()},
            "paused_anchor": self.anchor,
            "paused_velocity": self.velocity,
        }
        return {name: array for name, array in arrays.items() if array is not None}

    @classmethod
    def of_state(cls, state: State) -> "Paused | None":
        """The inverse of `to_state`; None if no order paused."""
        if PAUSED not in state:
            return None
        extra: Mapping[str, Vector] = {
            name.removeprefix(EXTRA): array
            for name, array in state.items()
            if name.startswith(EXTRA)
        }
        steps, loss = state["paused_at"]
        return cls(
            model=state[PAUSED],
            received=state.get("paused_received"),
            extra=extra,
            steps=int(steps),
            loss=float(loss),
            anchor=state.get("paused_anchor"),
            velocity=state.get("paused_velocity"),
        )


def without_pause(state: State) -> dict[str, NDArray[Any]]:
    """A client's state without what a paused order left in it."""
    return {name: array for name, array in state.items() if not name.startswith(PAUSED)}
