"""What another process needs to train the clients of a run."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from fl_app.client.build import build_trainer, prepare_process, transformed
from fl_app.client.gpus import prepare
from fl_app.client.transform import Trainer

if TYPE_CHECKING:
    from fl_app.client.task import TrainingTask
    from fl_app.client.trainer import LocalTrainer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """Makes what carries out orders in a process that inherits nothing; it can be pickled.

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

    def __call__(self, device: str) -> Trainer:
        """The trainer on a device, in a process that is prepared for it."""
        prepare_process()
        prepare(device)
        trainer = build_trainer(self.config, self.task, self.make, device)
        if self.fixed:
            trainer.model.load_fixed(self.fixed)
        return together(self.config, trainer, self.batch)


def together(config: DictConfig, trainer: "LocalTrainer", batch: int) -> Trainer:
    """What carries out orders, up to `batch` of them in one operation if that is possible."""
    whole = transformed(config, trainer)
    if batch == 1:
        return whole
    from fl_app.client.batch import BatchTrainer, obstacle  # which need torch

    if reason := obstacle(whole):
        log.warning("runtime.batch=%s: clients are trained one at a time: %s", batch, reason)
        return whole
    return BatchTrainer(trainer, batch)
