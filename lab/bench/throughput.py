"""Client updates per second of the engine and of the limit, in turns."""

import os
from functools import partial
from statistics import median
from typing import Any

from fl_app.client.build import prepare_process
from fl_app.engine.clock import Mailbox
from fl_app.engine.workers import Workers
from fl_app.tasks.task import Task
from lab.bench.limit import Limit
from lab.bench.sides import Federation, Side, memory_mb, race, train
from lab.bench.workloads import Workload


def in_processes(workload: Workload, task: Task) -> Mailbox:
    """As of ``runtime=inprocess``, with a worker for each core."""
    trainer = workload.trainer(task)
    return Workers(trainer, len(os.sched_getaffinity(0)), trainer.model.layout.size)


def measure(
    workload: Workload, repeats: int, seconds: float, same_allocator: bool
) -> dict[str, Any]:
    """One line of the benchmark: the medians over `repeats` measurements of both sides.

    Args:
        workload: what to measure.
        repeats: of the measurement.
        seconds: of each side in one of them.
        same_allocator: give the limit the allocator settings of a run, too; a run's own setting of
            them (`fl_app.client.build.prepare_process`) then counts for nothing.
    """
    cores = len(os.sched_getaffinity(0))
    task = workload.task()
    if same_allocator:  # else the limit knows nothing of how a run prepares its process
        prepare_process()
    sides: list[Side] = []
    try:
        sides.append(Federation(partial(train, workload, task, in_processes)))
        sides.append(Limit(workload, task, cores))
        results = race(sides, workload.warm_up, repeats, seconds)
        memory = memory_mb(sides[0], sides[1:])
    finally:
        for side in sides:
            side.close()
    ours, theirs = zip(*results, strict=True)
    ratios = [a.speed / b.speed for a, b in zip(ours, theirs, strict=True)]
    return {
        "work": workload.work,
        "limit": "same allocator" if same_allocator else "plain",
        "updates_per_second": round(median(each.speed for each in ours), 2),
        "limit_updates_per_second": round(median(each.speed for each in theirs), 2),
        "ratio": round(median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "cpu_ms_per_update": round(median(each.cost for each in ours), 3),
        "limit_cpu_ms_per_update": round(median(each.cost for each in theirs), 3),
        "overhead_ms_per_update": round(
            median(a.cost - b.cost for a, b in zip(ours, theirs, strict=True)), 3
        ),
        "rss_mb": round(memory),
        "rss_is": "proportional set size of engine, workers and the process that measures",
        "repeats": repeats,
        "seconds": seconds,
        "cores": cores,
    }
