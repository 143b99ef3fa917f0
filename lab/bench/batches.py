"""Clients trained together, against one at a time and a bare loop, in turns.

The two simulations are built from the configuration, as ``python -m fl_app`` builds them.
"""

import os
from functools import partial
from statistics import median
from typing import Any

import hydra
from omegaconf import DictConfig

from fl_app.cli import CONF
from fl_app.client.build import build_task, prepare_process
from fl_app.core.events import Arrived, Event
from fl_app.runner.factory import build_components, build_engine
from fl_app.tasks.task import Task
from lab.bench.limit import Limit
from lab.bench.processes import pss_mb
from lab.bench.sides import Count, Federation, Side, race
from lab.bench.workloads import LOCAL_LR, NOISE, Workload

AT_WORK = 32
ALGORITHMS = ("fedasync", "fedbuff")
# One client update is ten mini-batches of 16.
WORKLOADS = (
    Workload("B1", "logistic", (1, 8, 8), 100, 160, 16, 10, "delta", 1000),
    Workload("B2", "mlp", (1, 8, 8), 100, 160, 16, 10, "delta", 1000),
    Workload("B3", "mlp_overlap", (1, 28, 28), 100, 160, 16, 10, "delta", 200),
    Workload("B4", "lenet", (1, 28, 28), 100, 160, 16, 10, "delta", 100),
)


class _Arrivals:
    """A sink that counts client updates.

    Args:
        count: is told of them.
    """

    def __init__(self, count: Count) -> None:
        self._count = count

    def emit(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._count(1)

    def close(self) -> None: ...


def _simulate(config: DictConfig, task: Task, count: Count) -> None:
    """Run until this process is killed."""
    prepare_process()
    build_engine(build_components(config, task), sinks=[_Arrivals(count)]).run()


def _configuration(workload: Workload, algorithm: str, batch: int) -> DictConfig:
    shape = ",".join(map(str, workload.shape))
    overrides = [
        f"algorithm={algorithm}",
        f"algorithm.schedule.concurrency={AT_WORK}",
        "task=synthetic",
        f"task.model={workload.model}",
        f"task.shape=[{shape}]",
        f"task.num_examples={workload.num_clients * workload.examples}",
        f"task.noise={NOISE}",
        "partition=iid",
        f"num_clients={workload.num_clients}",
        f"algorithm.client.batch_size={workload.batch_size}",
        f"algorithm.client.local_steps={workload.steps}",
        f"algorithm.client.local_lr={LOCAL_LR}",
        "num_versions=1000000000",
        "eval_every=1000000000",
        f"runtime.batch={batch}",
    ]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=overrides)


def measure(
    workload: Workload, algorithm: str, batch: int, repeats: int, seconds: float
) -> dict[str, Any]:
    """One line of the benchmark: the medians over `repeats` measurements of all three sides.

    Args:
        workload: what to measure.
        algorithm: name of the algorithm.
        batch: ``runtime.batch`` of the first side.
        repeats: of the measurement.
        seconds: of each side in one of them.
    """
    cores = len(os.sched_getaffinity(0))
    config, plain = (_configuration(workload, algorithm, size) for size in (batch, 1))
    task = build_task(config)
    assert isinstance(task, Task)
    prepare_process()
    sides: list[Side] = []
    try:
        sides.append(Federation(partial(_simulate, config, task)))
        sides.append(Federation(partial(_simulate, plain, task)))
        sides.append(Limit(workload, task, cores))
        results = race(sides, workload.warm_up, repeats, seconds)
        memory = [pss_mb(side.pids)["Pss"] for side in sides]
    finally:
        for side in sides:
            side.close()
    ours, alone, limit = zip(*results, strict=True)
    gains = [a.speed / b.speed for a, b in zip(ours, alone, strict=True)]
    return {
        "work": f"{workload.work} {algorithm}",
        "batch": batch,
        "updates_per_second": round(median(each.speed for each in ours), 1),
        "one_at_a_time": round(median(each.speed for each in alone), 1),
        "limit_updates_per_second": round(median(each.speed for each in limit), 1),
        "gain": round(median(gains), 2),
        "spread": [round(min(gains), 2), round(max(gains), 2)],
        "ratio": round(median(a.speed / b.speed for a, b in zip(ours, limit, strict=True)), 2),
        "cpu_ms_per_update": round(median(each.cost for each in ours), 3),
        "cpu_ms_one_at_a_time": round(median(each.cost for each in alone), 3),
        "rss_mb": round(memory[0]),
        "rss_mb_one_at_a_time": round(memory[1]),
        "rss_is": "proportional set size of engine and workers",
        "repeats": repeats,
        "seconds": seconds,
        "cores": cores,
    }
