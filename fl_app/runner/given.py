"""Objects that a Python program gives in place of parts of the configuration."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from fl_app.client.build import COMMON_KEYS
from fl_app.schedule import Schedule
from fl_app.strategy import AsyncStrategy
from fl_app.strategy.strategy import described

if TYPE_CHECKING:
    from fl_app.client import LocalTrainer, TrainingTask


@dataclass(frozen=True)
class Given:
    """Objects in place of parts of the configuration; None = the configuration decides.

    A run works on copies of strategy and schedule, so the same objects serve several runs.

    Attributes:
        task: in place of ``task`` and, if it has clients, of ``partition`` and ``num_clients``.
        strategy: in place of ``algorithm.strategy``.
        schedule: in place of ``algorithm.schedule``.
        trainer: in place of ``algorithm.client._target_``; called with the task, the keys of
            ``algorithm.client``, the seed and the device.
    """

    task: "TrainingTask | None" = None
    strategy: AsyncStrategy | None = None
    schedule: Schedule | None = None
    trainer: "Callable[..., LocalTrainer] | None" = None


NOTHING = Given()


def describe(config: DictConfig, given: Given) -> None:
    """Write into `config` what was given, for ``config.yaml`` and for a run that is resumed.

    Args:
        config: composed from ``conf/``; it is changed.
        given: the objects of the run.
    """
    if given.task is not None:
        common = {key: config.task[key] for key in COMMON_KEYS if key in config.task}
        _put(config, "task", {"data": given.task.name, **common, **_examples(given.task)})
        if given.task.num_clients:
            _put(config, "partition", {"name": "of the task"})
            config.num_clients = given.task.num_clients
    if given.strategy is not None:
        _put(config, "algorithm.strategy", given.strategy._settings())
        config.algorithm.name = given.strategy._label
    if given.schedule is not None:
        _put(config, "algorithm.schedule", described(given.schedule))
    if given.trainer is not None:
        _put(config, "algorithm.client._target_", described(given.trainer))


def _examples(task: "TrainingTask") -> dict[str, Any]:
    """What is learned from: a run with other data, model or clients does not go on from its files.

    NOTE: of a task that is not `fl_app.tasks.task.Task` only its clients' examples are known.
    """
    import torch  # checks of a configuration import this module, and not torch

    num_examples = checksum = 0
    for name in ("inputs", "targets", "test_inputs", "test_targets"):
        tensor = getattr(task, name, None)
        if tensor is not None:
            checksum = zlib.crc32(repr((name, tensor.shape, tensor.dtype)).encode(), checksum)
            checksum = zlib.crc32(tensor.contiguous().numpy().reshape(-1).view("u1"), checksum)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = task.model().state_dict()
    for name, tensor in state.items():
        checksum = zlib.crc32(repr((name, tensor.shape, tensor.dtype)).encode(), checksum)
    for client_id in range(task.num_clients):
        indices = task.train_indices(client_id)
        num_examples += indices.size
        checksum = zlib.crc32(indices.tobytes(), checksum)
    return {"num_examples": num_examples, "crc32": checksum}


def _put(config: DictConfig, key: str, value: Any) -> None:
    OmegaConf.update(config, key, value, merge=False, force_add=True)
