"""Sides that are compared: each is alive all the time, and runs in turns of half a second.

Whoever is not measured is frozen. So background load affects all sides alike, nothing is warmed up
twice, and an update that a turn interrupts goes on in the next one: what is counted are
completions.
"""

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Protocol

import numpy as np
import psutil
import torch
from torch.nn import functional as F

from fl_app.client.build import prepare_process
from fl_app.client.flat import FlatModel
from fl_app.core.errors import RunError
from fl_app.core.types import Order, Reply, Vector
from fl_app.engine.clock import Joined, Left, Mailbox
from fl_app.tasks.task import Task
from lab.bench.workloads import LOCAL_LR, Workload

TURN = 0.5  # seconds
TICKS = os.sysconf("SC_CLK_TCK")

Counters = ctypes.Array[ctypes.c_ulonglong]

Count = Callable[[int], None]
"""Called with the number of further client updates."""


@dataclass
class Tally:
    """What one side did in the turns of a repeat."""

    updates: float = 0.0
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def speed(self) -> float:
        """Client updates per second."""
        return self.updates / self.seconds

    @property
    def cost(self) -> float:
        """Milliseconds of processor time per client update, of all processes."""
        return self.cpu / self.updates * 1e3


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

    def __init__(self, workload: Workload, task: Task, num_processes: int) -> None:
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


def _loop(workload: Workload, task: Task, steps: Counters, place: int) -> None:
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


class Counted:
    """A mailbox that counts uploads as soon as they come in, however late their virtual time is.

    Args:
        mailbox: the mailbox.
        count: is told of them.
    """

    def __init__(self, mailbox: Mailbox, count: Count) -> None:
        self._mailbox = mailbox
        self._count = count

    def share(self, vector: Vector) -> Vector:
        return self._mailbox.share(vector)

    def capacity(self) -> int:
        return self._mailbox.capacity()

    def push(self, order: Order) -> None:
        self._mailbox.push(order)

    def pull(self, timeout: float | None) -> Iterable[Reply | Joined | Left]:
        replies = list(self._mailbox.pull(timeout))
        self._count(sum(isinstance(r, Reply) and r.upload is not None for r in replies))
        return replies

    def close(self) -> None:
        self._mailbox.close()


def train(
    workload: Workload, task: Task, mailbox: Callable[[Workload, Task], Mailbox], count: Count
) -> None:
    """Run a workload's federation until this process is killed; for `Federation`.

    Args:
        workload: what is trained.
        task: its data.
        mailbox: makes the mailbox.
        count: is told of updates.
    """
    prepare_process()
    outcome = workload.engine(Counted(mailbox(workload, task), count), task).run()
    raise outcome.error or RunError(outcome.stopped)


def race(sides: Sequence[Side], warm_up: int, repeats: int, seconds: float) -> list[list[Tally]]:
    """Tallies of all sides for each repeat; in a turn of one side, the others are frozen.

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
    results = []
    for _ in range(repeats):
        tallies = [Tally() for _ in sides]
        while tallies[0].seconds < seconds:
            for side, tally in zip(sides, tallies, strict=True):
                _turn(side, tally)
        results.append(tallies)
    return results


def _turn(side: Side, tally: Tally) -> None:
    """Let one side run for a while; the others are frozen."""
    pids = side.pids
    before = side.updates(), time.perf_counter(), cpu_seconds(pids)
    send(signal.SIGCONT, pids)
    time.sleep(TURN)
    send(signal.SIGSTOP, pids)
    tally.updates += side.updates() - before[0]
    tally.seconds += time.perf_counter() - before[1]
    tally.cpu += cpu_seconds(pids) - before[2]


def memory_mb(side: Side, others: Sequence[Side]) -> float:
    """Proportional set size of one side, after the others have ended.

    This process counts too. It shares imports and data with the side, which would else be counted
    in part only.
    """
    for other in others:
        other.close()
    return pss_mb([os.getpid(), *side.pids])["Pss"]


def send(interruption: signal.Signals, pids: Iterable[int]) -> None:
    """Freeze processes where they are (SIGSTOP), or let them go on (SIGCONT)."""
    for pid in pids:
        os.kill(pid, interruption)


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of processes with all their threads, in clock ticks."""
    ticks = 0
    for pid in pids:
        # The name in parentheses, the second field, may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def pss_mb(pids: Iterable[int]) -> dict[str, float]:
    """Proportional set size of processes in MB: all of it, and its parts.

    Pages that n processes share count 1/n for each, so the sum is what all of them take together.

    Returns:
        Keys ``Pss``, ``Pss_Anon`` (private memory), ``Pss_Shmem`` (the arena) and ``Pss_File``
        (code; the one part that unrelated processes with the same libraries change).
    """
    total = dict.fromkeys(("Pss", "Pss_Anon", "Pss_Shmem", "Pss_File"), 0.0)
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, amount = line.split()[:2]
            if name[:-1] in total:
                total[name[:-1]] += int(amount) / 1024
    return total
