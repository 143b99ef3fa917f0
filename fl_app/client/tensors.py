"""Arithmetic on tensors of torch."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_app.client.bounds import FLOAT32
from fl_app.client.flat import FlatModel
from fl_app.client.weights import load_weights
from fl_app.core.errors import require
from fl_app.core.types import Vector

log = logging.getLogger(__name__)


class TensorOperations:
    """See `fl_app.client.operations.Operations`.

    Args:
        device: torch device; ``"auto"`` takes a GPU if there is one.
        precision: see `precision` below.

    Attributes:
        precision: ``"float32"``; or ``"bfloat16"``, in which torch computes products, such as those
            of a linear layer or a convolution, in forward and backward pass. Parameters, losses,
            gradients and steps are float32 either way.

    Raises:
        ValueError: torch has no mixed precision on the device.
    """

    def __init__(self, device: str, precision: str = FLOAT32) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        require(
            precision == FLOAT32 or torch.amp.is_autocast_available(self.device.type),
            "runtime.precision",
            precision,
            f"float32 with runtime.device={device}",
            "torch has no mixed precision there",
        )
        self.precision = precision
        self.holds_data = False  # whether a task's data are on the device, which is no processor

    def placed(self, task: Any) -> Any:
        """The task, with its data on the device if they fit there.

        Else, or if the task does not know how (`fl_app.tasks.task.Task.on` does), they are copied
        mini-batch by mini-batch.
        """
        if self.device.type == "cpu" or not hasattr(task, "on"):
            return task
        try:
            there = task.on(self.device)
        except torch.OutOfMemoryError:
            log.warning("the data do not fit on %s: mini-batches are copied there", self.device)
            return task
        self.holds_data = True
        return there

    def places(self, indices: NDArray[np.int64]) -> NDArray[np.int64] | Tensor:
        return torch.from_numpy(indices).to(self.device) if self.holds_data else indices

    def build_model(
        self, task: Any, seed: int, private: Sequence[str], weights: str | None
    ) -> FlatModel:
        with torch.random.fork_rng(devices=[]):  # the caller's own draws stay as they were
            torch.manual_seed(seed)
            module = task.model()
        if weights is not None:
            load_weights(module, weights)
        return FlatModel(module, self.device, private)

    def seed(self, seed: int) -> None:
        """Seed the generators that draw on the device.

        `torch.manual_seed` seeds every backend. If CUDA is built in but not in use, it formats a
        stack trace each time, which takes 0.3 ms.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def train_mode(self, model: FlatModel) -> None:
        if not model.module.training:  # `train` visits every submodule, in 0.1 ms
            model.module.train()

    def without_gradients(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    def examples(self, task: Any, chosen: NDArray[np.int64] | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets on the device."""
        inputs, target = task.batch(chosen)
        if self.device.type != "cpu" and not self.holds_data:
            inputs, target = inputs.to(self.device), target.to(self.device)
        return inputs, target

    def mixed(self) -> AbstractContextManager[Any]:
        """A context in which products have the precision."""
        if self.precision == FLOAT32:
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.precision))

    def loss(self, model: FlatModel, task: Any, chosen: NDArray[np.int64] | Tensor) -> Tensor:
        inputs, target = self.examples(task, chosen)
        with self.mixed():
            loss: Tensor = task.loss(in_float32(model.module(inputs)), target)
        return loss

    def gradient(
        self,
        model: FlatModel,
        task: Any,
        chosen: NDArray[np.int64] | Tensor,
        penalty: Callable[[], Tensor] | None,
    ) -> tuple[Tensor, list[Tensor]]:
        total = loss = self.loss(model, task, chosen)
        if penalty is not None:
            with self.mixed():
                total = loss + penalty()
        return loss.detach(), list(torch.autograd.grad(total, model.trained))

    def descend(
        self,
        params: list[Tensor],
        grad: list[Tensor],
        velocity: list[Tensor] | None,
        momentum: float,
        lr: float,
    ) -> list[Tensor] | None:
        with torch.no_grad():
            if momentum:
                if velocity is None:
                    velocity = [g.clone() for g in grad]
                else:
                    torch._foreach_mul_(velocity, momentum)
                    torch._foreach_add_(velocity, grad)
                grad = velocity
            torch._foreach_add_(params, grad, alpha=-lr)
        return velocity

    def add(self, first: list[Tensor], second: list[Tensor], alpha: float = 1.0) -> list[Tensor]:
        return list(torch._foreach_add(first, second, alpha=alpha))

    def subtract(self, first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        return list(torch._foreach_sub(first, second))

    def scale(self, arrays: list[Tensor], factor: float) -> list[Tensor]:
        return list(torch._foreach_mul(arrays, factor))

    def norm(self, arrays: list[Tensor]) -> float:
        return torch.nn.utils.get_total_norm(arrays).item()

    def copies(self, arrays: list[Tensor]) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in arrays]

    def zeros(self, arrays: list[Tensor]) -> list[Tensor]:
        return [torch.zeros_like(tensor) for tensor in arrays]

    def flat(self, arrays: list[Tensor], out: Vector | None = None) -> Vector:
        rows = [tensor.reshape(-1) for tensor in arrays]
        if out is None:
            vector: Vector = torch.cat(rows).cpu().numpy()
            return vector
        if self.device.type == "cpu":
            torch.cat(rows, out=torch.from_numpy(out))
        else:
            out[:] = torch.cat(rows).cpu().numpy()
        return out

    def like(self, flat: NDArray[Any], arrays: list[Tensor]) -> list[Tensor]:
        sizes = [tensor.numel() for tensor in arrays]
        parts = torch.split(torch.tensor(flat, device=self.device), sizes)
        return [part.view(t.shape) for part, t in zip(parts, arrays, strict=True)]

    def total(self, losses: Sequence[Tensor]) -> float:
        return float(torch.stack(list(losses)).sum())

    def mean(self, losses: Sequence[Tensor]) -> float:
        return float(torch.stack(list(losses)).mean())


def in_float32(output: Any) -> Any:
    """A model's output in the precision in which losses are computed."""
    return output.float() if getattr(output, "dtype", None) is torch.bfloat16 else output
