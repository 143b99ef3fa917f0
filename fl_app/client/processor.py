"""Where a model is computed while it trains."""

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from fl_app.tasks.task import Task

log = logging.getLogger(__name__)


class Processor:
    """A device of torch.

    Args:
        device: torch device; ``"auto"`` takes a GPU if there is one.

    Attributes:
        device: torch device.
    """

    def __init__(self, device: str) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self._holds_data = False  # whether a task's data are on the device, which is no CPU

    def placed(self, task: "Task") -> "Task":
        """The task, with its data on the device if they fit there.

        Else they are copied mini-batch by mini-batch.
        """
        if self.device.type == "cpu":
            return task
        try:
            there = task.on(self.device)
        except torch.OutOfMemoryError:
            log.warning("the data do not fit on %s: mini-batches are copied there", self.device)
            return task
        self._holds_data = True
        return there

    def places(self, indices: NDArray[np.int64]) -> NDArray[np.int64] | Tensor:
        """Indices of examples in the form in which `examples` takes them at once."""
        return torch.from_numpy(indices).to(self.device) if self._holds_data else indices

    def seed(self, seed: int) -> None:
        """Seed the generators that draw on the device while a model trains, such as for dropout.

        `torch.manual_seed` seeds all kinds of devices. If CUDA is built in but not in use, it
        formats a stack trace each time, which takes 0.3 ms.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def examples(self, task: "Task", chosen: NDArray[np.int64] | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets on the device; of indices as an array, or of `places`."""
        inputs, target = task.batch(chosen)
        if self.device.type != "cpu" and not self._holds_data:
            inputs, target = inputs.to(self.device), target.to(self.device)
        return inputs, target
