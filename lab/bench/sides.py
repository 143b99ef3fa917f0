"""Sides of a comparison: each stays alive, and runs in turns of half a second.

A side that is not measured is frozen. So background load affects all sides alike, nothing is warmed
up twice, and an update that a turn interrupts continues in the next one. Completed updates count.
"""

import ctypes
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import psutil

from fl_app.core.errors import RunError
from fl_app.core.types import Reply
from fl_app.engine.clock import Joined, Left, Mailbox

TURN = 0.5  # seconds

Count = Callable[[float], None]
"""Called with the number of further client updates; a part of one is a fraction."""


class Side:
    """Processes that do client updates, each forked with all data.

    Args:
        jobs: one for each process, which carries it out until it is killed.
    """

    def __init__(self, jobs: Sequence[Callable[[Count], None]]) -> None:
        context = multiprocessing.get_context("fork")
        self._updates = context.RawArray(ctypes.c_double, len(jobs))
        self._processes = [
            context.Process(target=job, args=(partial(self._count, place),))
            for place, job in enumerate(jobs)
        ]
        for process in self._processes:
            process.start()

    def _count(self, place: int, updates: float) -> None:
        self._updates[place] += updates

    @property
    def pids(self) -> list[int]:
        """Ids of the processes and of all their descendants."""
        parents = [psutil.Process(process.pid) for process in self._processes if process.is_alive()]
        return [each.pid for one in parents for each in (one, *one.children(recursive=True))]

    def updates(self) -> float:
        """Client updates so far.

        Raises:
            RunError: a process has ended.
        """
        if not all(process.is_alive() for process in self._processes):
            raise RunError("a side has ended")
        return sum(self._updates)

    def close(self) -> None:
        """End all of its processes at once."""
        for pid in reversed(self.pids):
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        for process in self._processes:
            process.join()


def count_uploads(mailbox: Mailbox, count: Count) -> None:
    """Let a mailbox count uploads as soon as they come in, however late their virtual time."""
    pull = mailbox.pull

    def counting(timeout: float | None) -> list[Reply | Joined | Left]:
        replies = list(pull(timeout))
        count(sum(isinstance(reply, Reply) and reply.upload is not None for reply in replies))
        return replies

    mailbox.pull = counting  # type: ignore[method-assign]


def race(sides: Sequence[Side], warm_up: int, repeats: int, seconds: float) -> list[list[float]]:
    """Client updates per second of all sides for each repeat; the others are frozen meanwhile.

    Args:
        sides: to compare.
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
            for side, pairs in zip(sides, turns, strict=True):
                pairs.append(_turn(side))
        sums = [[sum(values) for values in zip(*pairs, strict=True)] for pairs in turns]
        speeds.append([updates / elapsed for updates, elapsed in sums])
    return speeds


def _turn(side: Side) -> tuple[float, float]:
    """Let one side run for a while; returns its updates, and the seconds that passed."""
    pids = side.pids
    updates, start = side.updates(), time.perf_counter()
    send(signal.SIGCONT, pids)
    time.sleep(TURN)
    send(signal.SIGSTOP, pids)
    return side.updates() - updates, time.perf_counter() - start


def send(interruption: signal.Signals, pids: Iterable[int]) -> None:
    """Freeze processes (SIGSTOP), or continue them (SIGCONT)."""
    for pid in pids:
        os.kill(pid, interruption)
