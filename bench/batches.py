"""Clients trained together, against one at a time and a bare loop, in turns of half a second.

Each side is processes of its own that live all the time, and whoever is not measured is frozen, so
that background load affects all alike. The two simulations are built from the configuration, as
``python -m fl_app`` builds them.
"""

import ctypes
import multiprocessing
import os
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Protocol

import hydra
import psutil
from omegaconf import DictConfig

from bench.limit import Limit
from bench.processes import cpu_seconds, freeze, pss_mb, thaw
from bench.throughput import TURN, Tally
from bench.workloads import LOCAL_LR, NOISE, Workload
from fl_app.cli import CONF
from fl_app.client.build import build_task, prepare_process
from fl_app.core.errors import RunError
from fl_app.core.events import Arrived, Event
from fl_app.runner.factory import build_components, build_engine, choose_batch
from fl_app.tasks.task import Task

AT_WORK = 32
ALGORITHMS = ("fedasync", "fedbuff")
# One client update is ten mini-batches of 16.
WORKLOADS = (
    Workload("B1", "logistic", (1, 8, 8), 100, 160, 16, 10, "delta", 1000),
    Workload("B2", "mlp", (1, 8, 8), 100, 160, 16, 10, "delta", 1000),
    Workload("B3", "mlp_overlap", (1, 28, 28), 100, 160, 16, 10, "delta", 200),
    Workload("B4", "lenet", (1, 28, 28), 100, 160, 16, 10, "delta", 100),
)


class Side(Protocol):
    """Processes that do client updates."""

    @property
    def pids(self) -> list[int]: ...
    def updates(self) -> float: ...
    def close(self) -> None: ...


class Simulation:
    """A run in processes of its own, without evaluation.

    Args:
        config: of the run.
        task: its data, inherited through fork.
        batch: in place of ``runtime.batch``.
    """

    def __init__(self, config: DictConfig, task: Task, batch: int) -> None:
        context = multiprocessing.get_context("fork")
        self._arrivals = context.RawValue(ctypes.c_ulonglong)
        self._process = context.Process(target=_simulate, args=(config, task, batch, self))
        self._process.start()

    @property
    def pids(self) -> list[int]:
        """The engine's process, and those of its workers."""
        assert self._process.pid is not None
        parent = psutil.Process(self._process.pid)
        return [parent.pid, *(child.pid for child in parent.children(recursive=True))]

    def updates(self) -> float:
        """Client updates that have arrived."""
        if not self._process.is_alive():
            raise RunError("a simulation has ended")
        return float(self._arrivals.value)

    def emit(self, event: Event) -> None:
        """Count an arrival: as the sink of the run."""
        if isinstance(event, Arrived):
            self._arrivals.value += 1

    def close(self) -> None:
        """End all of its processes at once."""
        for pid in reversed(self.pids):
            psutil.Process(pid).kill()
        self._process.join()


def _simulate(config: DictConfig, task: Task, batch: int, counter: Simulation) -> None:
    prepare_process()
    build_engine(build_components(config, task), sinks=[counter], batch=batch).run()


def _configuration(workload: Workload, algorithm: str, batch: str) -> DictConfig:
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


def _turn(side: Side, tally: Tally) -> None:
    """Let one side run for a while; the others are frozen."""
    pids = side.pids
    before = side.updates(), time.perf_counter(), cpu_seconds(pids)
    thaw(pids)
    time.sleep(TURN)
    freeze(pids)
    tally.updates += side.updates() - before[0]
    tally.seconds += time.perf_counter() - before[1]
    tally.cpu += cpu_seconds(pids) - before[2]


def race(sides: Sequence[Side], warm_up: int, repeats: int, seconds: float) -> list[list[Tally]]:
    """Tallies of all sides for each repeat; in a turn of one side, the others are frozen."""
    for side in sides:
        while side.updates() < warm_up:
            time.sleep(0.05)
        freeze(side.pids)
    results = []
    for _ in range(repeats):
        tallies = [Tally() for _ in sides]
        while tallies[0].seconds < seconds:
            for side, tally in zip(sides, tallies, strict=True):
                _turn(side, tally)
        results.append(tallies)
    return results


def measure(
    workload: Workload, algorithm: str, batch: str, repeats: int, seconds: float
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
    config = _configuration(workload, algorithm, batch)
    task = build_task(config)
    assert isinstance(task, Task)
    prepare_process()
    size = choose_batch(build_components(config, task))
    sides: list[Side] = []
    try:
        sides.append(Simulation(config, task, size))
        sides.append(Simulation(config, task, 1))
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
        "batch": size,
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
