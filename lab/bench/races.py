"""Client updates per second of one side against another, in turns.

W is the engine against a bare loop, B clients trained together against one at a time and the bare
loop, R workers of a Ray cluster (this machine's) against those of ``runtime=inprocess``.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from omegaconf import DictConfig

from fl_app.cli import compose
from fl_app.client import LocalTrainer
from fl_app.client.build import Recipe, build_task, prepare_process
from fl_app.cluster.connection import connect
from fl_app.cluster.mailbox import ClusterMailbox
from fl_app.core.events import Arrived, Event
from fl_app.engine.clock import Mailbox
from fl_app.engine.workers import Workers
from fl_app.runner.components import build_components
from fl_app.runner.factory import build_engine
from fl_app.tasks.task import Task
from lab.bench.sides import Count, Federation, Limit, Side, Tally, memory_mb, pss_mb, race, train
from lab.bench.workloads import LOCAL_LR, NOISE, WORKLOADS, Workload

AT_WORK = 32
ALGORITHMS = ("fedasync", "fedbuff")
# One client update is ten mini-batches of 16.
TOGETHER = (
    Workload("B1", "logistic", (1, 8, 8), 100, 160, 16, 10, "delta", 1000),
    Workload("B2", "mlp", (1, 8, 8), 100, 160, 16, 10, "delta", 1000),
    Workload("B3", "mlp_overlap", (1, 28, 28), 100, 160, 16, 10, "delta", 200),
    Workload("B4", "lenet", (1, 28, 28), 100, 160, 16, 10, "delta", 100),
)
CLUSTER = {f"R{workload.work[1:]}": workload for workload in WORKLOADS}


def engine(
    workload: Workload, repeats: int, seconds: float, same_allocator: bool
) -> dict[str, Any]:
    """The engine against the limit.

    Args:
        workload: what to measure.
        repeats: of the measurement.
        seconds: of each side in one of them.
        same_allocator: give the limit the allocator settings of a run, too; a run's own setting of
            them (`fl_app.client.build.prepare_process`) then counts for nothing.
    """
    task = workload.task()
    if same_allocator:  # else the limit knows nothing of how a run prepares its process
        prepare_process()
    makers: list[Callable[[], Side]] = [
        lambda: Federation(partial(train, workload, task, in_processes)),
        lambda: Limit(workload, task, _cores()),
    ]
    results, memory = _race(makers, workload, repeats, seconds)
    return {
        "work": workload.work,
        "limit": "same allocator" if same_allocator else "plain",
        **_told(results, "limit"),
        "rss_mb": round(memory),
        "rss_is": "proportional set size of engine, workers and the process that measures",
        **_setting(repeats, seconds),
    }


def on_cluster(work: str, repeats: int, seconds: float) -> dict[str, Any]:
    """Ray's workers against worker processes; Ray's own processes are frozen with its side."""
    workload = CLUSTER[work]
    task = workload.task()
    makers: list[Callable[[], Side]] = [
        lambda: Federation(partial(train, workload, task, _on_cluster)),
        lambda: Federation(partial(train, workload, task, in_processes)),
    ]
    results, memory = _race(makers, workload, repeats, seconds)
    return {
        "work": work,
        **_told(results, "inprocess"),
        "rss_mb": round(memory),
        "rss_is": "proportional set size of engine, workers, Ray's own processes and the process "
        "that measures",
        **_setting(repeats, seconds),
    }


def together(
    workload: Workload, algorithm: str, batch: int, repeats: int, seconds: float
) -> dict[str, Any]:
    """Clients trained together, built from the configuration as ``python -m fl_app`` does it."""
    config, plain = (_configuration(workload, algorithm, size) for size in (batch, 1))
    task = build_task(config)
    assert isinstance(task, Task)
    prepare_process()
    memory: list[float] = []
    makers: list[Callable[[], Side]] = [
        lambda: Federation(partial(_simulate, config, task)),
        lambda: Federation(partial(_simulate, plain, task)),
        lambda: Limit(workload, task, _cores()),
    ]
    results, _ = _race(makers, workload, repeats, seconds, memory)
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
        **_setting(repeats, seconds),
    }


def in_processes(workload: Workload, task: Task) -> Mailbox:
    """As of ``runtime=inprocess``, with a worker for each core."""
    trainer = workload.trainer(task)
    return Workers(trainer, _cores(), trainer.model.layout.size)


def _race(
    makers: Sequence[Callable[[], Side]],
    workload: Workload,
    repeats: int,
    seconds: float,
    each: list[float] | None = None,
) -> tuple[list[list[Tally]], float]:
    """Tallies of all sides for each repeat, and the memory of the first; of `each` in the list."""
    sides: list[Side] = []
    try:
        for make in makers:
            sides.append(make())
        results = race(sides, workload.warm_up, repeats, seconds)
        if each is not None:
            each += [pss_mb(side.pids)["Pss"] for side in sides]
        return results, memory_mb(sides[0], sides[1:])
    finally:
        for side in sides:
            side.close()


def _told(results: Sequence[Sequence[Tally]], other: str) -> dict[str, Any]:
    """The medians over repeats of two sides, the second called `other`."""
    ours, theirs = zip(*results, strict=True)
    ratios = [a.speed / b.speed for a, b in zip(ours, theirs, strict=True)]
    return {
        "updates_per_second": round(median(each.speed for each in ours), 2),
        f"{other}_updates_per_second": round(median(each.speed for each in theirs), 2),
        "ratio": round(median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "cpu_ms_per_update": round(median(each.cost for each in ours), 3),
        f"{other}_cpu_ms_per_update": round(median(each.cost for each in theirs), 3),
    }


def _setting(repeats: int, seconds: float) -> dict[str, Any]:
    return {"repeats": repeats, "seconds": seconds, "cores": _cores()}


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class _Arrivals:
    """A sink that counts client updates."""

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
    return compose(
        [
            *(f"algorithm={algorithm}", f"algorithm.schedule.concurrency={AT_WORK}"),
            *("task=synthetic", f"task.model={workload.model}", f"task.noise={NOISE}"),
            f"task.shape=[{','.join(map(str, workload.shape))}]",
            f"task.num_examples={workload.num_clients * workload.examples}",
            *("partition=iid", f"num_clients={workload.num_clients}"),
            f"algorithm.client.batch_size={workload.batch_size}",
            f"algorithm.client.local_steps={workload.steps}",
            f"algorithm.client.local_lr={LOCAL_LR}",
            *("num_versions=1000000000", "eval_every=1000000000", f"runtime.batch={batch}"),
        ]
    )


def _on_cluster(workload: Workload, task: Task) -> Mailbox:
    """As of ``runtime=ray``, with a worker for each core."""
    connect(None, _cores())
    recipe = Recipe(compose(["runtime=ray"]), task, partial(_trainer, workload))
    return ClusterMailbox(recipe, disconnects=True)


def _trainer(workload: Workload, task: Task, **settings: Any) -> LocalTrainer:
    del settings  # of the configuration: the workload has its own
    return workload.trainer(task)
