"""What another process needs to train the clients of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from fl_app.client.build import build_trainer, prepare_process
from fl_app.client.gpus import prepare

if TYPE_CHECKING:
    from fl_app.client.compression import Trainer
    from fl_app.client.task import TrainingTask
    from fl_app.client.trainer import LocalTrainer


@dataclass(frozen=True)
class Recipe:
    """Makes the trainer of a run in a process that inherits nothing; it can be pickled.

    Called with a device, it prepares the process and returns what a worker trains with.

    Attributes:
        config: of the run.
        task: complete, with its data.
        make: in place of the configured trainer; None = the configured one.
        fixed: bytes of the model's fixed part by name; empty = as the trainer makes it.
        batch: largest number of clients that are trained in one operation, >= 1.
    """

    config: DictConfig
    task: "TrainingTask"
    make: "Callable[..., LocalTrainer] | None" = None
    fixed: "Mapping[str, NDArray[np.uint8]] | None" = None
    batch: int = 1

    def __call__(self, device: str) -> "Trainer":
        return together(self.trainer(device), self.batch)

    def trainer(self, device: str) -> "LocalTrainer":
        """The trainer on a device, in a process that is prepared for it."""
        prepare_process()
        prepare(device)
        trainer = build_trainer(self.config, self.task, self.make, device)
        if self.fixed:
            trainer.model.load_fixed(self.fixed)
        return trainer


def together(trainer: "LocalTrainer", batch: int) -> "Trainer":
    """What carries out orders, up to `batch` of them in one operation."""
    if batch == 1:
        return trainer.sender
    from fl_app.client.batch import BatchTrainer  # which needs torch

    return BatchTrainer(trainer, batch)
