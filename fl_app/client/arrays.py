"""Arithmetic on arrays of NumPy, for machines without torch."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.client.array_model import ArrayModel
from fl_app.client.backend import refuse_weights
from fl_app.core.errors import require
from fl_app.core.types import Vector

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Processor:
    """The one device of NumPy."""

    type: str = "cpu"

    def __str__(self) -> str:
        return self.type


class ArrayOperations:
    """See `fl_app.client.operations.Operations`.

    Args:
        device: ``"cpu"`` or ``"auto"``.

    Raises:
        ValueError: another device.
    """

    device = Processor()

    def __init__(self, device: str) -> None:
        require(
            device in ("cpu", "auto"),
            "runtime.device",
            device,
            "cpu or auto with runtime.backend=numpy",
            "NumPy computes on the processor",
        )

    def placed(self, task: Any) -> Any:
        return task

    def places(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return indices

    def build_model(
        self, task: Any, seed: int, private: Sequence[str], weights: str | None
    ) -> ArrayModel:
        refuse_weights(weights)
        network = task.model()
        network.initialise(seed)
        return ArrayModel(network, private)

    def seed(self, seed: int) -> None:
        """None of the layers draws."""

    def train_mode(self, model: ArrayModel) -> None:
        """The layers compute the same in training and evaluation."""

    def without_gradients(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def loss(self, model: ArrayModel, task: Any, chosen: NDArray[np.int64]) -> np.float32:
        loss: np.float32 = task.loss(model.module, chosen)
        return loss

    def gradient(
        self,
        model: ArrayModel,
        task: Any,
        chosen: NDArray[np.int64],
        penalty: Callable[[], Any] | None,
    ) -> tuple[np.float32, list[Array]]:
        assert penalty is None, "refused by LocalTrainer"
        loss, grad = task.gradient(model.module, chosen)
        return loss, [grad[name] for name in model.trained_names]

    def descend(
        self,
        params: list[Array],
        grad: list[Array],
        velocity: list[Array] | None,
        momentum: float,
        lr: float,
    ) -> list[Array] | None:
        if momentum:
            if velocity is None:
                velocity = self.copies(grad)
            else:
                for v, g in zip(velocity, grad, strict=True):
                    v *= np.float32(momentum)
                    v += g
            grad = velocity
        for w, g in zip(params, grad, strict=True):
            w -= np.float32(lr) * g
        return velocity

    def add(self, first: list[Array], second: list[Array], alpha: float = 1.0) -> list[Array]:
        factor = np.float32(alpha)
        return [a + factor * b for a, b in zip(first, second, strict=True)]

    def subtract(self, first: list[Array], second: list[Array]) -> list[Array]:
        return [a - b for a, b in zip(first, second, strict=True)]

    def scale(self, arrays: list[Array], factor: float) -> list[Array]:
        return [np.float32(factor) * array for array in arrays]

    def norm(self, arrays: list[Array]) -> float:
        return math.sqrt(sum(float(np.vdot(array, array)) for array in arrays))

    def copies(self, arrays: list[Array]) -> list[Array]:
        return [array.copy() for array in arrays]

    def zeros(self, arrays: list[Array]) -> list[Array]:
        return [np.zeros_like(array) for array in arrays]

    def flat(self, arrays: list[Array], out: Vector | None = None) -> Vector:
        return np.concatenate([array.reshape(-1) for array in arrays], out=out)

    def like(self, flat: NDArray[Any], arrays: list[Array]) -> list[Array]:
        places = np.cumsum([array.size for array in arrays])[:-1]
        parts = np.split(flat.astype(np.float32), places)
        return [part.reshape(a.shape) for part, a in zip(parts, arrays, strict=True)]

    def total(self, losses: Sequence[np.float32]) -> float:
        return float(np.sum(losses))

    def mean(self, losses: Sequence[np.float32]) -> float:
        return float(np.mean(losses))
