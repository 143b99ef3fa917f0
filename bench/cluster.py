"""W1 to W4 on workers of a Ray cluster, against the worker processes of ``runtime=inprocess``.

The cluster is one machine: this one. Both sides train the same federation, in turns of half a
second; whoever is not measured is frozen, with Ray's own processes.
"""

import ctypes
import multiprocessing
import os
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any

import psutil
from omegaconf import OmegaConf

from bench.batches import Side, race
from bench.processes import pss_mb
from bench.workloads import WORKLOADS, Workload
from fl_app.cli import compose
from fl_app.client import LocalTrainer
from fl_app.client.build import prepare_process
from fl_app.cluster.connection import RayCluster
from fl_app.cluster.crew import Crew
from fl_app.cluster.mailbox import ClusterMailbox
from fl_app.cluster.parcels import pack_object
from fl_app.cluster.versions import Versions
from fl_app.cluster.worker import Setup
from fl_app.core.errors import RunError
from fl_app.core.types import Order, Reply, Vector
from fl_app.engine.clock import Joined, Left, Mailbox
from fl_app.engine.workers import Workers
from fl_app.tasks.task import Task

WORKS = {f"R{workload.work[1:]}": workload for workload in WORKLOADS}
STORE = 1 << 30  # bytes, besides the data


class Counted:
    """A mailbox that counts replies as soon as they come in.

    Args:
        mailbox: the mailbox.
        counter: shared with the process that measures.
    """

    def __init__(self, mailbox: Mailbox, counter: Any) -> None:
        self._mailbox = mailbox
        self._counter = counter

    def share(self, vector: Vector) -> Vector:
        return self._mailbox.share(vector)

    def capacity(self) -> int:
        return self._mailbox.capacity()

    def push(self, order: Order) -> None:
        self._mailbox.push(order)

    def pull(self, timeout: float | None) -> Iterable[Reply | Joined | Left]:
        replies = list(self._mailbox.pull(timeout))
        self._counter.value += len(replies)
        return replies

    def close(self) -> None:
        self._mailbox.close()


class Federation:
    """A federation in processes of its own, without evaluation.

    Args:
        workload: what is trained.
        task: its data, inherited through fork.
        mailbox: makes the mailbox.
    """

    def __init__(
        self, workload: Workload, task: Task, mailbox: Callable[[Workload, Task], Mailbox]
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._replies = context.RawValue(ctypes.c_ulonglong)
        self._process = context.Process(
            target=_train, args=(workload, task, mailbox, self._replies)
        )
        self._process.start()

    @property
    def pids(self) -> list[int]:
        """The engine's process, and all that it has started."""
        assert self._process.pid is not None
        parent = psutil.Process(self._process.pid)
        return [parent.pid, *(child.pid for child in parent.children(recursive=True))]

    def updates(self) -> float:
        """Replies that have come in."""
        if not self._process.is_alive():
            raise RunError("a federation has ended")
        return float(self._replies.value)

    def close(self) -> None:
        """End all of its processes at once."""
        if self._process.is_alive():
            for pid in reversed(self.pids):
                psutil.Process(pid).kill()
        self._process.join()


def _train(
    workload: Workload, task: Task, mailbox: Callable[[Workload, Task], Mailbox], counter: Any
) -> None:
    prepare_process()
    outcome = workload.engine(Counted(mailbox(workload, task), counter), task).run()
    raise outcome.error or KeyboardInterrupt


def in_processes(workload: Workload, task: Task) -> Mailbox:
    """As of ``runtime=inprocess``, with a worker for each core."""
    trainer = workload.trainer(task)
    return Workers(trainer, len(os.sched_getaffinity(0)), trainer.model.layout.size)


def on_cluster(workload: Workload, task: Task) -> Mailbox:
    """As of ``runtime=ray``, with a worker for each core."""
    setup = Setup(
        config=OmegaConf.to_yaml(compose(["runtime=ray"]), resolve=True),
        digest="",
        names=False,
        fixed={},
        make=partial(_trainer, workload),
    )
    data = pack_object(task)
    store = STORE + sum(buffer.nbytes for buffer in data[1])
    cluster = RayCluster(None, store_bytes=store)
    crew = Crew(cluster, pack_object(setup), lambda: data)
    return ClusterMailbox(crew, Versions(cluster.put, STORE // 4))


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
        sides.append(Federation(workload, task, on_cluster))
        sides.append(Federation(workload, task, in_processes))
        results = race(sides, workload.warm_up, repeats, seconds)
        memory = [pss_mb(side.pids)["Pss"] for side in sides]
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
        "rss_mb": round(memory[0]),
        "inprocess_rss_mb": round(memory[1]),
        "rss_is": "proportional set size of engine, workers and Ray's own processes",
        "repeats": repeats,
        "seconds": seconds,
        "cores": len(os.sched_getaffinity(0)),
    }
