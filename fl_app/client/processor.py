"""Where and how exactly a model is computed while it trains."""

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_app.client.settings import FLOAT32, PRECISIONS
from fl_app.client.task import TrainingTask
from fl_app.core.errors import require

log = logging.getLogger(__name__)


class Processor:
    """A device of torch, and the precision of its products.

    Args:
        device: torch device; ``"auto"`` takes a GPU if there is one.
        precision: see `precision` below.

    Attributes:
        device: torch device.
        precision: ``"float32"``; or ``"bfloat16"``, in which torch computes products, such as those
            of a linear layer or a convolution, in forward and backward pass. Parameters, losses,
            gradients and steps are float32 either way.

    Raises:
        ValueError: the precision is unknown, or torch does not have it on the device.
    """

    def __init__(self, device: str, precision: str = FLOAT32) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        require(
            precision in PRECISIONS,
            "runtime.precision",
            precision,
            f"one of {', '.join(PRECISIONS)}",
            "a model's products are computed in one of them",
        )
        require(
            precision == FLOAT32 or torch.amp.is_autocast_available(self.device.type),
            "runtime.precision",
            precision,
            f"float32 with runtime.device={device}",
            "torch has no mixed precision there",
        )
        self.precision = precision
        self._holds_data = False  # whether a task's data are on the device, which is no CPU

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
        self._holds_data = True
        return there

    def places(self, indices: NDArray[np.int64]) -> NDArray[np.int64] | Tensor:
        """Indices of examples in the form in which `loss` takes them at once."""
        return torch.from_numpy(indices).to(self.device) if self._holds_data else indices

    def seed(self, seed: int) -> None:
        """Seed the generators that draw on the device while a model trains, such as for dropout.

        `torch.manual_seed` seeds all kinds of devices. If CUDA is built in but not in use, it
        formats a stack trace each time, which takes 0.3 ms.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def mixed(self) -> AbstractContextManager[Any]:
        """A context in which products have the precision."""
        if self.precision == FLOAT32:
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.precision))

    def examples(
        self, task: TrainingTask, chosen: NDArray[np.int64] | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets on the device; of indices as an array, or of `places`."""
        inputs, target = task.batch(chosen)  # type: ignore[arg-type]
        if self.device.type != "cpu" and not self._holds_data:
            inputs, target = inputs.to(self.device), target.to(self.device)
        return inputs, target

    def loss(
        self, module: nn.Module, task: TrainingTask, chosen: NDArray[np.int64] | Tensor
    ) -> Tensor:
        """A batch's loss, a scalar; `chosen` as of `examples`."""
        inputs, target = self.examples(task, chosen)
        with self.mixed():
            return task.loss(in_float32(module(inputs)), target)


def in_float32(output: Any) -> Any:
    """A model's output in the precision in which losses are computed."""
    return output.float() if getattr(output, "dtype", None) is torch.bfloat16 else output
