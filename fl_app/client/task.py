"""What local training needs of a task."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn


class TrainingTask(Protocol):
    """What local training needs of a task (`fl_app.tasks.task.Task`)."""

    @property
    def name(self) -> str:
        """Name in the configuration."""
        ...

    @property
    def num_clients(self) -> int:
        """N."""
        ...

    @property
    def has_test_set(self) -> bool:
        """Whether the server can test a model; if not, `test` is never called."""
        ...

    def model(self) -> "nn.Module":
        """A new model, with initial weights from torch's global random state.

        Parameters with ``requires_grad=False`` are frozen: they are not sent with every order.
        """
        ...

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        """The client's training examples, shape ``(n_i,)``, n_i >= 1."""
        ...

    def batch(self, indices: NDArray[np.int64]) -> "tuple[Tensor, Tensor]":
        """Inputs and targets of training examples.

        A task that can put its data on a GPU (`fl_app.tasks.task.Task.on`) also takes a tensor of
        indices there.
        """
        ...

    def loss(self, output: "Tensor", target: "Tensor") -> "Tensor":
        """Mean loss over a batch, a scalar."""
        ...

    def test(self, model: "nn.Module") -> Mapping[str, float]:
        """Metrics of a model on the server's test set, ``"loss"`` among them."""
        ...

    def evaluation_indices(self, client_id: int) -> NDArray[np.int64]:
        """The examples on which a client evaluates, shape ``(m_i,)``."""
        ...

    def evaluate(self, model: "nn.Module", client_id: int) -> tuple[Mapping[str, float], int]:
        """Metrics on one client's validation examples, ``"loss"`` among them, and their number.

        A client without such examples gives ``({}, 0)``.
        """
        ...
