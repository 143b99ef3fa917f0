"""W1 to W4 on workers of a Ray cluster, against the worker processes of ``runtime=inprocess``.

The cluster is one machine: this one. Both sides train the same federation, in turns. Ray's own
processes belong to its side, and are frozen with it.
"""

import os
from functools import partial
from statistics import median
from typing import Any

from fl_app.cli import compose
from fl_app.client import LocalTrainer
from fl_app.client.recipe import Recipe
from fl_app.cluster.connection import connect
from fl_app.cluster.mailbox import ClusterMailbox
from fl_app.engine.clock import Mailbox
from fl_app.tasks.task import Task
from lab.bench.sides import Federation, Side, memory_mb, race, train
from lab.bench.throughput import in_processes
from lab.bench.workloads import WORKLOADS, Workload

WORKS = {f"R{workload.work[1:]}": workload for workload in WORKLOADS}


def on_cluster(workload: Workload, task: Task) -> Mailbox:
    """As of ``runtime=ray``, with a worker for each core."""
    connect(None, len(os.sched_getaffinity(0)))
    recipe = Recipe(compose(["runtime=ray"]), task, partial(_trainer, workload))
    return ClusterMailbox(recipe, disconnects=True)


def _trainer(workload: Workload, task: Task, **settings: Any) -> LocalTrainer:
    del settings  # of the configuration: the workload has its own
    return workload.trainer(task)


def measure(work: str, repeats: int, seconds: float) -> dict[str, Any]:
    """One line of the benchmark: the medians over `repeats` measurements of both sides.

    Args:
        work: a key of `WORKS`.
        repeats: of the measurement.
        seconds: of each side in one of them.
    """
    workload = WORKS[work]
    task = workload.task()
    sides: list[Side] = []
    try:
        sides.append(Federation(partial(train, workload, task, on_cluster)))
        sides.append(Federation(partial(train, workload, task, in_processes)))
        results = race(sides, workload.warm_up, repeats, seconds)
        memory = memory_mb(sides[0], sides[1:])
    finally:
        for side in sides:
            side.close()
    ours, theirs = zip(*results, strict=True)
    ratios = [a.speed / b.speed for a, b in zip(ours, theirs, strict=True)]
    return {
        "work": work,
        "updates_per_second": round(median(each.speed for each in ours), 2),
        "inprocess_updates_per_second": round(median(each.speed for each in theirs), 2),
        "ratio": round(median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "cpu_ms_per_update": round(median(each.cost for each in ours), 3),
        "inprocess_cpu_ms_per_update": round(median(each.cost for each in theirs), 3),
        "rss_mb": round(memory),
        "rss_is": "proportional set size of engine, workers, Ray's own processes and the process "
        "that measures",
        "repeats": repeats,
        "seconds": seconds,
        "cores": len(os.sched_getaffinity(0)),
    }
