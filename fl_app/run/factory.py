"""Configuration -> the objects of a run. Only this module and `validate` know both."""

import ctypes
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from omegaconf import DictConfig, OmegaConf
from threadpoolctl import threadpool_limits

from fl_app.client import LocalTrainer, TrainingTask, initial_vector
from fl_app.core.errors import require
from fl_app.core.events import Sink
from fl_app.core.layout import Layout
from fl_app.core.types import Devices
from fl_app.devices import Fleet, Overlapping
from fl_app.engine.clock import Clock, Mailbox
from fl_app.engine.engine import Engine, Evaluate, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.wall import WallClock
from fl_app.engine.workers import Inline, Workers
from fl_app.flower import private, wire
from fl_app.flower.grid import AnyNode, GridMailbox
from fl_app.run.validate import PARTS, build_guard, build_schedule, build_strategy, instantiate
from fl_app.schedule import Schedule
from fl_app.tasks.per_class import ClassTask, PerClass

if TYPE_CHECKING:
    from flwr.serverapp import Grid


# From malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def build_task(config: DictConfig) -> TrainingTask:
    """The task with the data of all `num_clients` clients."""
    partition = instantiate(config.partition)
    task: TrainingTask = instantiate(
        config.task,
        partition=partition,
        num_clients=config.num_clients,
        seed=config.seed,
    )
    return task


def build_trainer(config: DictConfig, task: TrainingTask | None = None) -> LocalTrainer:
    """The client half of the configured algorithm; `task` spares building it again."""
    trainer: LocalTrainer = instantiate(
        config.algorithm.client,
        task=build_task(config) if task is None else task,
        seed=config.seed,
        device=config.runtime.device,
    )
    return trainer


@dataclass(frozen=True)
class Sizes:
    """Bytes of what travels, vectors beside the model included; the same for every client."""

    model: int
    order: int
    upload: int


def build_sizes(config: DictConfig, trainer: LocalTrainer) -> Sizes:
    """What an order of the configured algorithm and its upload take, before the first is given."""
    strategy, layout = build_strategy(config), trainer.model.layout
    return Sizes(
        model=4 * layout.size,
        order=4 * layout.size * (1 + len(strategy.order_extra)),
        upload=trainer.compression.num_bytes(layout) * (1 + len(strategy.upload_extra)),
    )


def build_devices(config: DictConfig, trainer: LocalTrainer) -> Fleet | Overlapping | None:
    """The devices of all clients; None where time is not theirs: with random-K, on real nodes.

    Of an algorithm that trains while models travel, the trainer is told how many local epochs fit.
    """
    if config.runtime.name == "deployment" or build_schedule(config).devices is not None:
        return None
    task, settings = trainer.task, config.devices
    sizes = build_sizes(config, trainer)
    facts = {
        "num_clients": config.num_clients,
        "seed": config.seed,
        "num_bytes": sizes.model,
        "download_share": sizes.order / sizes.model,
        "upload_share": sizes.upload / sizes.model,
        "num_examples": [task.train_indices(i).size for i in range(config.num_clients)],
    }
    own = [key for key in settings if key not in PARTS]
    compute = instantiate(OmegaConf.masked_copy(settings, own), facts)
    facts["mean_seconds"] = compute.mean_seconds
    network, energy = (
        instantiate(settings[part], facts) if part in settings else None
        for part in ("network", "energy")
    )
    fleet = Fleet(compute, network, energy)
    if not trainer.overlaps:
        return fleet
    cap = config.algorithm.strategy.max_local_epochs
    overlapping = Overlapping(fleet, config.num_clients, cap)
    trainer.local_epochs = config.algorithm.client.local_epochs = overlapping.local_epochs
    return overlapping


def build_engine(
    config: DictConfig,
    trainer: LocalTrainer,
    devices: Fleet | Overlapping | None,
    *,
    sinks: Sequence[Sink],
    checkpoint: Callable[[int], None] | None = None,
    grid: "Grid | None" = None,
    run: str = "",
) -> tuple[Engine, Layout]:
    """Everything a run needs, connected.

    Args:
        config: as composed from ``conf/``, and found good by `validate_config`.
        trainer: of the task; does the training where no Flower nodes do.
        devices: of all clients, as `build_devices` gives them.
        sinks: receive the events; the list may grow until the engine runs.
        checkpoint: called with the version when it is time for one.
        grid: of the ServerApp, for the runtimes that need one.
        run: letters and digits by which real nodes know it when it goes on; "" = Flower's run id.

    Raises:
        ValueError: a value is refused.
    """
    initial, layout = initial_vector(trainer.task, config.seed)
    schedule, strategy = build_schedule(config), build_strategy(config)
    extra = strategy.upload_extra
    engine = Engine(
        strategy=strategy,
        schedule=schedule,
        clock=_clock(config, trainer, layout, schedule, devices, grid, run, extra),
        initial=initial,
        num_trainable=layout.num_trainable,
        stop=Stop(
            num_versions=_unlimited(config.num_versions),
            seconds=_unlimited(config.max_seconds),
            target_accuracy=_unlimited(config.target_accuracy),
            updates=_unlimited(config.max_updates),
        ),
        evaluate=_evaluation(trainer, config.metrics),
        eval_every=config.eval_every,
        guard=build_guard(config),
        upload_bytes=build_sizes(config, trainer).upload,
        checkpoint=checkpoint,
        checkpoint_every=config.checkpoint_every,
        checkpoint_final=config.checkpoint_final,
        sinks=sinks,
        seed=config.seed,
        learning_rates={
            f"algorithm.{key}": rate
            for key in ("client.local_lr", "strategy.server_lr")
            if (rate := OmegaConf.select(config.algorithm, key)) is not None
        },
    )
    return engine, layout


def prepare_process() -> None:
    """Settle how this process and its children train.

    One thread for torch and BLAS: bits that do not depend on the number of cores. It is also the
    fastest: small models gain nothing from a second thread, and training runs in as many processes
    as there are cores.

    The C library keeps freed memory: by default the tensors of every mini-batch go back to the
    system and are paged in again for the next, a tenth of a LeNet step's time. So does every vector
    of a large model, which costs more than to add it up, and whatever the threshold: it cannot be
    set above 32 MB.
    """
    torch.set_num_threads(1)
    threadpool_limits(1)
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
        if mallopt is not None:
            mallopt(M_TRIM_THRESHOLD, 256 << 20)
            mallopt(M_MMAP_MAX, 0)


def _clock(
    config: DictConfig,
    trainer: LocalTrainer,
    layout: Layout,
    schedule: Schedule,
    devices: Fleet | Overlapping | None,
    grid: "Grid | None",
    run: str,
    upload_extra: Sequence[str],
) -> Clock:
    deadline = _unlimited(config.deadline)
    runtime = config.runtime
    settings = {wire.APP_CONFIG: OmegaConf.to_yaml(config, resolve=True)}
    if runtime.name == "deployment":
        assert grid is not None
        if runtime.warm and private.known():
            private.pull_sooner()
        if run:
            settings[wire.RUN] = run
        mailbox = GridMailbox(grid, layout, train_config=settings, deadline=deadline)
        return WallClock(mailbox, deadline=deadline)
    availability = config.devices.get("availability")
    if schedule.devices is not None and (trainer.pauses or trainer.overlaps):
        raise ValueError(
            f"algorithm/schedule=random_k knows how long an order takes, and not its parts: "
            f"algorithm={config.algorithm.name} needs devices, and another schedule"
        )
    return VirtualClock(
        _mailbox(config, trainer, layout, grid, settings, upload_extra),
        cast(Devices, schedule.devices or devices),
        config.num_clients,
        deadline=deadline,
        seed=config.seed,
        availability=availability and instantiate(availability, {"seed": config.seed}),
        epochs=trainer.epochs,
        counts_epochs=trainer.local_steps is None and devices is not None,
        pauses=trainer.pauses,
    )


def _mailbox(
    config: DictConfig,
    trainer: LocalTrainer,
    layout: Layout,
    grid: "Grid | None",
    settings: dict[str, str],
    upload_extra: Sequence[str],
) -> Mailbox:
    if grid is not None and config.runtime.name == "flower":
        return AnyNode(grid, layout, train_config=settings)
    workers = config.runtime.workers
    may_fork = hasattr(os, "fork") and trainer.device.type == "cpu"
    if workers == "auto":
        workers = len(os.sched_getaffinity(0)) if may_fork else 0
    require(
        may_fork or workers == 0,
        "runtime.workers",
        workers,
        f"auto or 0 here, with runtime.device={trainer.device}",
        "there are no forked processes, or they cannot use what their parent has begun to use",
    )
    if workers == 0:
        return Inline(trainer.sender)
    return Workers(
        trainer.sender,
        workers,
        layout.size,
        upload_extra=upload_extra,
        patience=config.runtime.patience,
    )


def _evaluation(trainer: LocalTrainer, further: Sequence[str]) -> Evaluate:
    test = PerClass(cast(ClassTask, trainer.task), further) if further else trainer.task.test

    def evaluate(version: int, vector: Any) -> dict[str, float]:
        del version
        trainer.model.load(vector)
        return dict(test(trainer.model.module))

    return evaluate


def _unlimited(value: float | None) -> float:
    return math.inf if value is None else value
