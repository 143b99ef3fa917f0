"""Sides that are compared: each is alive all the time, and runs in turns of half a second.

Whoever is not measured is frozen. So background load affects all sides alike, nothing is warmed up
twice, and an update that a turn interrupts goes on in the next one: what is counted are
completions.
"""

import ctypes
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING, Protocol

import numpy as np
import psutil
import torch
from torch.nn import functional as F

from fl_app.client.flat import FlatModel
from fl_app.core.errors import RunError
from fl_app.core.types import Reply
from fl_app.engine.clock import Joined, Left, Mailbox
from fl_app.tasks.task import Task

if TYPE_CHECKING:
    from lab.bench.workloads import Workload

TURN = 0.5  # seconds
LOCAL_LR = 1e-3

Counters = ctypes.Array[ctypes.c_ulonglong]

Count = Callable[[int], None]
"""Called with the number of further client updates."""


class Side(Protocol):
    """Processes that do client updates."""

    @property
    def pids(self) -> list[int]: ...
    def updates(self) -> float: ...
    def close(self) -> None: ...


class Federation:
    """A federation in processes of its own, without evaluation.

    Args:
        train: runs it, in a process that has inherited all data through fork.
    """

    def __init__(self, train: Callable[[Count], None]) -> None:
        context = multiprocessing.get_context("fork")
        self._updates = context.RawValue(ctypes.c_ulonglong)
        self._process = context.Process(target=train, args=(self._count,))
        self._process.start()

    def _count(self, updates: int) -> None:
        self._updates.value += updates

    @property
    def pids(self) -> list[int]:
        """The engine's process, and all that it has started."""
        assert self._process.pid is not None
        parent = psutil.Process(self._process.pid)
        return [parent.pid, *(child.pid for child in parent.children(recursive=True))]

    def updates(self) -> float:
        """Client updates so far.

        Raises:
            RunError: the federation has ended.
        """
        if not self._process.is_alive():
            raise RunError("a federation has ended")
        return float(self._updates.value)

    def close(self) -> None:
        """End all of its processes at once."""
        if self._process.is_alive():
            for pid in reversed(self.pids):
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()
        self._process.join()


class Limit:
    """Processes that do nothing but SGD on the workload's batches.

    Args:
        workload: what is trained.
        task: its data, inherited through fork.
        num_processes: one per core.
    """

    def __init__(self, workload: "Workload", task: Task, num_processes: int) -> None:
        context = multiprocessing.get_context("fork")
        self._steps_per_update = workload.steps
        self._steps = context.RawArray(ctypes.c_ulonglong, num_processes)
        self._processes = [
            context.Process(target=_loop, args=(workload, task, self._steps, place), daemon=True)
            for place in range(num_processes)
        ]
        for process in self._processes:
            process.start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def updates(self) -> float:
        """Client updates done so far; a step is a fraction of one."""
        return sum(self._steps) / self._steps_per_update

    def close(self) -> None:
        """End the processes at once."""
        for process in self._processes:
            process.kill()
            process.join()


def _loop(workload: "Workload", task: Task, steps: Counters, place: int) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(place)
    model = FlatModel(task.model())  # parameters are views of one vector
    module, params = model.module.train(), tuple(model.params)
    batches = [
        torch.from_numpy(batch)
        for client_id in rng.permutation(workload.num_clients)
        for batch in rng.permutation(task.train_indices(client_id)).reshape(-1, workload.batch_size)
    ]
    inputs, targets = task.inputs, task.targets
    for batch in cycle(batches):
        output = module(inputs.index_select(0, batch))
        loss = F.cross_entropy(output, targets.index_select(0, batch))
        grad = torch.autograd.grad(loss, params)
        with torch.no_grad():
            torch._foreach_add_(params, grad, alpha=-LOCAL_LR)
        steps[place] += 1


def counted(mailbox: Mailbox, count: Count) -> Mailbox:
    """The mailbox, which tells of uploads as soon as they come in, however late their virtual time.

    Args:
        mailbox: of a federation.
        count: is told of them.
    """
    pull = mailbox.pull

    def counting(timeout: float | None) -> list[Reply | Joined | Left]:
        replies = list(pull(timeout))
        count(sum(isinstance(each, Reply) and each.upload is not None for each in replies))
        return replies

    mailbox.pull = counting  # type: ignore[method-assign]
    return mailbox


def race(sides: Sequence[Side], warm_up: int, repeats: int, seconds: float) -> list[list[float]]:
    """Client updates per second of all sides for each repeat; the others are frozen meanwhile.

    Args:
        sides: that are compared.
        warm_up: client updates of each side before anything is measured.
        repeats: of the measurement.
        seconds: of each side in one of them.
    """
    for side in sides:
        while side.updates() < warm_up:
            time.sleep(0.05)
        send(signal.SIGSTOP, side.pids)
    speeds = []
    for _ in range(repeats):
        turns: list[list[tuple[float, float]]] = [[] for _ in sides]
        for _ in range(math.ceil(seconds / TURN)):
            for side, taken in zip(sides, turns, strict=True):
                taken.append(_turn(side))
        sums = [[sum(part) for part in zip(*taken, strict=True)] for taken in turns]
        speeds.append([updates / passed for updates, passed in sums])
    return speeds


def _turn(side: Side) -> tuple[float, float]:
    """Let one side run for a while; returns its updates, and the seconds that passed."""
    pids = side.pids
    before, began = side.updates(), time.perf_counter()
    send(signal.SIGCONT, pids)
    time.sleep(TURN)
    send(signal.SIGSTOP, pids)
    return side.updates() - before, time.perf_counter() - began


def send(interruption: signal.Signals, pids: Iterable[int]) -> None:
    """Freeze processes where they are (SIGSTOP), or let them go on (SIGCONT)."""
    for pid in pids:
        os.kill(pid, interruption)
