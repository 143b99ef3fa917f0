"""Where a run trains: in this process, in workers on the processor, or in workers on GPUs."""

import os
from dataclasses import dataclass

from omegaconf import DictConfig

from fl_app.client.gpus import AUTO, gpus_of
from fl_app.core.errors import require

CPU = "cpu"


@dataclass(frozen=True)
class Placement:
    """Devices of a run's processes.

    Attributes:
        device: of the trainer in this process. With worker processes on GPUs it is the processor,
            so that this process never begins to use a GPU.
        workers: worker processes; 0 = this process trains.
        gpus: of the workers in turn; () = they train on the processor.
    """

    device: str
    workers: int = 0
    gpus: tuple[str, ...] = ()


def placement(config: DictConfig) -> Placement:
    """Where a configured run trains.

    Raises:
        ValueError: there is no such device, or there can be no such workers.
    """
    runtime = config.runtime
    device = str(runtime.device)
    if runtime.name == "ray":  # this process sends the data to the workers' machines
        return Placement(CPU)
    if runtime.name != "inprocess":
        return Placement(device)
    gpus = gpus_of(device)
    workers = runtime.workers
    if not gpus:
        device = CPU if device == AUTO else device  # what remains of auto
        may_fork = hasattr(os, "fork") and device == CPU
        if workers == AUTO:
            return Placement(device, len(os.sched_getaffinity(0)) if may_fork else 0)
        require(
            may_fork or workers == 0,
            "runtime.workers",
            workers,
            f"auto or 0 here, with runtime.device={device}",
            "there are no forked processes, or they cannot use this device",
        )
        return Placement(device, int(workers))
    if workers == 0:
        return Placement(gpus[0])
    if workers == AUTO:
        workers = len(gpus) * int(runtime.workers_per_gpu)
    return Placement(CPU, int(workers), tuple(gpus))
