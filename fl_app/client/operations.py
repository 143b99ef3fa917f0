"""Arithmetic on a model's arrays, which are tensors of torch or arrays of NumPy."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fl_app.client.backend import NUMPY
from fl_app.client.bounds import FLOAT32, PRECISIONS
from fl_app.core.errors import require
from fl_app.core.types import Vector

Arrays = list[Any]  # one for each trained array of the model, in the order of its vector


class Operations(Protocol):
    """What `fl_app.client.LocalTrainer` computes; lists have an entry for each array."""

    @property
    def device(self) -> Any:
        """Where models are; its ``type`` is ``"cpu"``, ``"cuda"``, ..."""
        ...

    def placed(self, task: Any) -> Any:
        """The task, with its data on the device if they fit there."""
        ...

    def places(self, indices: NDArray[np.int64]) -> Any:
        """Indices of examples in the form in which `loss` takes them at once."""
        ...

    def build_model(self, task: Any, seed: int, private: Sequence[str], weights: str | None) -> Any:
        """See `fl_app.client.trainer.build_model`."""
        ...

    def seed(self, seed: int) -> None:
        """Seed what draws while a model trains, such as dropout."""
        ...

    def train_mode(self, model: Any) -> None:
        """Prepare a model for training, after it was evaluated."""
        ...

    def without_gradients(self) -> AbstractContextManager[Any]:
        """A context in which operations are not recorded."""
        ...

    def loss(self, model: Any, task: Any, chosen: Any) -> Any:
        """A batch's loss, a scalar; of examples as an array of NumPy, or of `places`."""
        ...

    def gradient(
        self,
        model: Any,
        task: Any,
        chosen: Any,
        penalty: Callable[[], Any] | None,
    ) -> tuple[Any, Arrays]:
        """A batch's loss, and the gradient of loss plus penalty."""
        ...

    def descend(
        self, params: Arrays, grad: Arrays, velocity: Arrays | None, momentum: float, lr: float
    ) -> Arrays | None:
        """One step of SGD, which changes `params`; returns the velocity, None without momentum."""
        ...

    def add(self, first: Arrays, second: Arrays, alpha: float = 1.0) -> Arrays:
        """``first + alpha * second``."""
        ...

    def subtract(self, first: Arrays, second: Arrays) -> Arrays:
        """``first - second``."""
        ...

    def scale(self, arrays: Arrays, factor: float) -> Arrays:
        """``factor * arrays``."""
        ...

    def norm(self, arrays: Arrays) -> float:
        """Euclidean norm of all entries together."""
        ...

    def copies(self, arrays: Arrays) -> Arrays:
        """Copies that later steps do not change."""
        ...

    def zeros(self, arrays: Arrays) -> Arrays:
        """Zeros of the same shapes."""
        ...

    def flat(self, arrays: Arrays, out: Vector | None = None) -> Vector:
        """All entries in one vector of NumPy; with `out`, in this one."""
        ...

    def like(self, flat: NDArray[Any], arrays: Arrays) -> Arrays:
        """The inverse of `flat`: copies with the shapes of `arrays`."""
        ...

    def total(self, losses: Sequence[Any]) -> float:
        """Sum of scalars."""
        ...

    def mean(self, losses: Sequence[Any]) -> float:
        """Mean of at least one scalar."""
        ...


def operations(backend: str, device: str, precision: str = FLOAT32) -> Operations:
    """The operations of a backend.

    Args:
        backend: ``"torch"`` or ``"numpy"``.
        device: of torch; ``"auto"`` takes a GPU if there is one.
        precision: of products while a model trains, ``"float32"`` or ``"bfloat16"``.

    Raises:
        ValueError: NumPy is to compute on another device than the processor, or the backend or the
            device lacks the precision.
    """
    require(
        precision in PRECISIONS,
        "runtime.precision",
        precision,
        f"one of {', '.join(PRECISIONS)}",
        "a model's products are computed in one of them",
    )
    if backend == NUMPY:
        from fl_app.client.arrays import ArrayOperations

        require(
            precision == FLOAT32,
            "runtime.precision",
            precision,
            "float32 with runtime.backend=numpy",
            "NumPy has no such numbers",
        )
        return ArrayOperations(device)
    from fl_app.client.tensors import TensorOperations  # torch takes seconds to import

    return TensorOperations(device, precision)
