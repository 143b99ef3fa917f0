"""The objects of a run that do not depend on its folder, built from the configuration."""

import os
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

from omegaconf import DictConfig

from fl_app.client.build import asks_for_masks, build_task, build_trainer, instantiate
from fl_app.client.gpus import AUTO, CPU, prepare, resolve_device
from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import require
from fl_app.core.width import Widths, assign_widths
from fl_app.devices.fleet import Fleet, Overlapping
from fl_app.runner.validate import NO_OBJECTS, PARTS, UserObjects, build_schedule, build_strategy
from fl_app.schedule import Schedule

if TYPE_CHECKING:
    from fl_app.client import LocalTrainer
    from fl_app.tasks.task import Task


def placement(config: DictConfig) -> tuple[str, int]:
    """Where a configured run trains.

    Returns:
        The device of the trainer in this process, which may be a GPU if there are no workers; and
        the number of worker processes, which train on the processor.

    Raises:
        ValueError: there is no such device, or there can be no such workers.
    """
    runtime = config.runtime
    if runtime.name == "ray":  # this process sends the data to the workers' machines
        return CPU, 0
    if runtime.name != "inprocess":
        return str(runtime.device), 0
    device, workers = resolve_device(str(runtime.device)), runtime.workers
    if workers == AUTO:
        # Cells side by side share the cores; with one core a cell needs no worker.
        share = len(os.sched_getaffinity(0)) // config.experiment.parallel
        workers = share if device == CPU and share > 1 else 0
    fits, bound = device == CPU or workers == 0, f"auto or 0 here, with runtime.device={device}"
    effect = "forked processes cannot use this device; runtime=ray with "
    effect += "runtime.gpus_per_worker=1 has workers on GPUs"
    require(fits, "runtime.workers", workers, bound, effect)
    return device, int(workers)


class Components(NamedTuple):
    """The objects of a run that do not depend on its folder.

    Attributes:
        config: the run's, with the number of local epochs that nodes are to train.
        trainer: of the task, its model at w_0; trains where no Flower nodes do.
        strategy: how updates become the next model.
        schedule: when clients start and updates are aggregated.
        devices: of all clients; None where the schedule or real nodes decide how long orders take.
        upload_bytes: of every client's uploads, extra vectors included.
        workers: worker processes; 0 = this process trains.
        objects: objects in place of parts of the configuration.
    """

    config: DictConfig
    trainer: "LocalTrainer"
    strategy: Algorithm
    schedule: Schedule
    devices: Fleet | Overlapping | None
    upload_bytes: int
    workers: int
    objects: UserObjects


def build_components(
    config: DictConfig, task: "Task | None" = None, objects: UserObjects = NO_OBJECTS
) -> Components:
    """Build what `config` describes; `config` itself is not changed.

    Args:
        config: composed from ``conf/``, and accepted by `validate_config`.
        task: as `build_task` gives it; None = build it.
        objects: objects in place of parts of the configuration.

    Raises:
        ValueError: a value is refused.
    """
    device, workers = placement(config)
    task = build_task(config) if task is None else task
    strategy, schedule = build_strategy(config, objects), build_schedule(config, objects)
    uses_masks = asks_for_masks(config)
    if uses_masks:
        from fl_app.secure import run as secure  # imported late, because few runs need it
        from fl_app.secure.seals import SEAL_BYTES

        # Clients and helper need the numbers that follow from others.
        config = secure.settled(config, strategy, schedule)
    prepare(device)
    trainer = build_trainer(config, task, objects.trainer, device)
    order_bytes, upload_bytes = message_bytes(strategy, trainer)
    if uses_masks:
        secure.refuse_buffers(trainer.model.layout)
        upload_bytes += SEAL_BYTES
    real, devices = config.runtime.name == "deployment", None
    if schedule.devices is None and (trainer.widths or not real):
        devices = _build_devices(config, trainer, order_bytes, upload_bytes)
    if trainer.widths:
        fits, bound = not (trainer.pauses or trainer.twins), f"null with {type(trainer).__name__}"
        effect = "it holds whole models or waits for one"
        require(fits, "algorithm.client.widths", list(trainer.widths), bound, effect)
        trainer.model.narrowed(min(trainer.widths))  # refuses other layers
        assert isinstance(devices, Fleet)
        shares = assign_widths(trainer.widths, devices.compute.mean_seconds)
        strategy.widths = Widths(trainer.model.layout, shares, trainer.width_window == "rolling")
        devices.entries = strategy.widths.parts
    if real:
        devices = None  # they only served to find the slow clients
    elif devices is not None:
        schedule.settle(devices.parts, devices.joules)
    if isinstance(devices, Overlapping):
        # These devices know how many local epochs cover a transfer.
        config = deepcopy(config)
        config.algorithm.client.local_epochs = devices.local_epochs
        trainer = build_trainer(config, task, objects.trainer, device)
    return Components(config, trainer, strategy, schedule, devices, upload_bytes, workers, objects)


def message_bytes(strategy: Algorithm, trainer: "LocalTrainer") -> tuple[int, int]:
    """The bytes of an algorithm's orders, and of its uploads, known before the first order."""
    order_bytes = 4 * trainer.model.layout.size * (1 + len(strategy.order_extra))
    return order_bytes, trainer.compressed.num_bytes * (1 + len(strategy.upload_extra))


def _build_devices(
    config: DictConfig, trainer: "LocalTrainer", order_bytes: int, upload_bytes: int
) -> Fleet | Overlapping:
    task, settings, model_bytes = trainer.task, config.devices, 4 * trainer.model.layout.size
    clients, has_data = range(config.num_clients), task.num_clients > 0  # nodes may have the data
    facts = {
        "num_clients": config.num_clients,
        "seed": config.seed,
        "num_bytes": model_bytes,
        "download_share": order_bytes / model_bytes,
        "upload_share": upload_bytes / model_bytes,
        "num_examples": [task.train_indices(i).size if has_data else 1 for i in clients],
    }
    compute = instantiate(settings, facts, leave_out=PARTS)
    facts["mean_seconds"] = compute.mean_seconds
    parts = map(settings.get, ("network", "energy"))
    fleet = Fleet(compute, *(part and instantiate(part, facts) for part in parts))
    if trainer.overlaps:
        return Overlapping(fleet, config.num_clients, config.algorithm.strategy.max_local_epochs)
    return fleet
