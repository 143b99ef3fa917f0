"""Carries out runs: one after the other in this process, or side by side in processes."""

import contextlib
import gc
import io
import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

import fl_app.cli  # noqa: F401 - registers the resolvers of conf/, also in a spawned process
from fl_app.client.gpus import gpus_of
from fl_app.core.errors import RunError
from fl_app.record.progress import Board
from fl_app.runner import signals
from fl_app.runner.cell import run_cell
from fl_app.runner.given import NOTHING, Given

if TYPE_CHECKING:
    from flwr.serverapp import Grid

__all__ = ["Ended", "Job", "Plan", "carry_out"]

LOOK_EVERY = 0.1  # wall seconds between two looks at what the processes tell
MAX_DEATHS = 3  # of the processes of one job, after which it fails


@dataclass(frozen=True)
class Plan:
    """One cell that is to run.

    Attributes:
        config: accepted by `fl_app.runner.validate.validate_config`.
        overrides: the user's.
        given: objects in place of parts of the configuration.
    """

    config: DictConfig
    overrides: Sequence[str] = ()
    given: Given = NOTHING


@dataclass(frozen=True)
class Job:
    """One run with its place.

    Attributes:
        name: by which the job is known to its caller.
        plan: what runs.
        folder: for the files.
        label: what runs, for the console.
        experiment: as of `fl_app.runner.cell.run_cell`.
        deaths: how many of its processes were killed.
    """

    name: str
    plan: Plan
    folder: Path
    label: str
    experiment: Path | None = None
    deaths: int = 0


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        summary: of the run; None if it was refused, or ended before it had one.
        error: that ended the run early.
        refused: why the configuration was refused, such as data that do not fit the clients.
        interrupted: whether Ctrl-C came during the run, even if too late to end it, or kept it from
            beginning.
        told: what the run printed in its process.
    """

    summary: dict[str, Any] | None = None
    error: RunError | None = None
    refused: ValueError | None = None
    interrupted: bool = False
    told: str = ""


def carry_out(
    jobs: deque[Job], parallel: int = 1, *, grid: "Grid | None" = None, show: bool = True
) -> Iterator[tuple[Job, Ended]]:
    """Carry out jobs, and yield each with its end. After Ctrl-C no further job begins.

    Each process computes with one thread, and ``runtime.workers=auto`` shares the cores, or the
    room of a Ray cluster, among the processes. If a process is killed, another one resumes its job
    from the last checkpoint, or begins it again; other jobs do not notice.

    Args:
        jobs: first comes first. The caller may append further ones while this iterates.
        parallel: processes, each with one job at a time; 1 = all jobs run in this process.
        grid: of the ServerApp, for the runtimes that need one; only with `parallel` 1.
        show: whether to show progress.

    Raises:
        OSError: the disk is full or fails.
    """
    if parallel > 1:
        yield from _SideBySide(jobs, parallel, show).run()
        return
    while True:
        try:
            job = _with_its_share(jobs.popleft(), 1)
        except IndexError:  # none is left; a handler of Ctrl-C may have removed the others
            return
        ended = _run(job, grid=grid, show=show)
        yield job, ended
        if ended.interrupted:
            return


def _run(
    job: Job,
    *,
    grid: "Grid | None" = None,
    show: bool = True,
    draw: Callable[[float | None, str], None] | None = None,
) -> Ended:
    try:
        outcome, summary = run_cell(
            job.plan.config,
            job.folder,
            label=job.label,
            grid=grid,
            overrides=job.plan.overrides,
            experiment=job.experiment,
            given=job.plan.given,
            show=show,
            draw=draw,
        )
    except ValueError as error:
        return Ended(refused=error)
    ended = Ended(summary, outcome.error, interrupted=outcome.asked_to_stop)
    # The engine and its callbacks refer to each other, and hold all vectors of the run.
    del outcome
    gc.collect()
    return ended


# -- in the processes -----------------------------------------------------------------------------

_line: Connection | None = None  # to the main process


def _begin(line: Connection, levels: dict[str, int]) -> None:
    """Prepare a process for its jobs.

    Args:
        line: takes the id of this process, then the progress of its jobs.
        levels: of the main process's loggers.
    """
    global _line
    _line = line
    signals.note()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.HANDLED)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    line.send(os.getpid())


def _run_here(job: Job) -> Ended:
    if signals.noted:
        return Ended(interrupted=True)
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        ended = _run(job, show=_line is not None, draw=_tell)
    return replace(ended, told=told.getvalue())


def _tell(share: float | None, status: str) -> None:
    with suppress(OSError):  # the main process is gone, and this one ends within a second
        assert _line is not None
        _line.send((share, status))


# -- in the main process --------------------------------------------------------------------------


class _Slot:
    """One process, or its successors, with at most one job.

    Each has an executor with one process: in one executor with several, the death of one process
    would fail the jobs of all.

    Attributes:
        job: that runs.
        begun: whether the job has told of its progress, so that the files in its folder are its
            own.
        pid: of the process; None until it has started.
        told_to_stop: whether `stop` was called.
    """

    def __init__(self) -> None:
        self.job: Job | None = None
        self.begun = False
        self.pid: int | None = None
        self.told_to_stop = False
        self._executor: ProcessPoolExecutor | None = None
        self._line: Connection | None = None

    def submit(self, job: Job) -> Future[Ended]:
        if self._executor is not None:
            try:
                future = self._executor.submit(_run_here, job)
            except BrokenProcessPool:  # the process was killed while it had no job
                self.close()
            else:
                self.job, self.begun = job, False
                return future
        self.job, self.begun = job, False
        context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
        self._line, line = context.Pipe(duplex=False)
        known = [name for name in logging.root.manager.loggerDict]
        levels = {name: level for name in known if (level := logging.getLogger(name).level)}
        self._executor = ProcessPoolExecutor(
            1, mp_context=context, initializer=_begin, initargs=(line, levels)
        )
        # Ctrl-C waits until the process can handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
        try:
            return self._executor.submit(_run_here, job)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.HANDLED)
            line.close()  # so that this end knows when the process is gone

    def hear(self) -> tuple[float | None, str] | None:
        """The latest progress of the job; None if nothing was told since the last call."""
        latest = None
        with suppress(EOFError, OSError):
            while self._line is not None and self._line.poll():
                told = self._line.recv()
                if isinstance(told, int):
                    self.pid = told
                else:
                    latest, self.begun = told, True
        return latest

    def stop(self) -> None:
        """Ask the job to end with a checkpoint, once."""
        if self.pid is None or self.told_to_stop:
            return
        self.told_to_stop = True
        # The process may have received Ctrl-C, too. It gets the other signal: the same one twice
        # would end it without a checkpoint.
        other = signal.SIGTERM if signals.received == signal.SIGINT else signal.SIGINT
        with suppress(ProcessLookupError):
            os.kill(self.pid, other)

    def close(self, kill: bool = False) -> None:
        """End the process; without `kill`, when its job has ended."""
        if self._executor is None:
            return
        if kill and self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._executor.shutdown(wait=not kill, cancel_futures=True)
        assert self._line is not None
        self._line.close()
        self._executor = self._line = self.pid = self.job = None
        self.told_to_stop = False


def _with_its_share(job: Job, parallel: int) -> Job:
    """The job, with worker processes for its share of the cores; with one core it needs none."""
    runtime = job.plan.config.runtime
    if runtime.get("workers") != "auto" or (parallel == 1 and runtime.name != "ray"):
        return job
    config = job.plan.config.copy()
    if runtime.name == "ray":  # how much room a cluster has, the process will know
        config.experiment.parallel = parallel
    elif gpus_of(str(runtime.device)):
        return job  # it has workers for each GPU, and not for each core
    else:
        cores = len(os.sched_getaffinity(0)) // parallel
        config.runtime.workers = cores if cores > 1 else 0
    return replace(job, plan=replace(job.plan, config=config))


class _SideBySide:
    """Carries out jobs in processes; see `carry_out`."""

    def __init__(self, jobs: deque[Job], parallel: int, show: bool) -> None:
        self._jobs = jobs
        self._slots = [_Slot() for _ in range(parallel)]
        self._running: dict[Future[Ended], _Slot] = {}
        self._board = Board() if show else None
        self._stopping = False

    def run(self) -> Iterator[tuple[Job, Ended]]:
        with ExitStack() as stack:
            if self._board is not None:
                stack.callback(self._board.close)
            patient = stack.enter_context(signals.interruptible(self._stop))
            stack.enter_context(patient())
            try:
                yield from self._run()
            except BaseException:
                for slot in self._slots:
                    slot.close(kill=True)
                raise
            for slot in self._slots:
                slot.close()

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> Iterator[tuple[Job, Ended]]:
        while self._running or (self._jobs and not self._stopping):
            for slot in self._slots:
                if slot.job is None and self._jobs and not self._stopping:
                    job = _with_its_share(self._jobs.popleft(), len(self._slots))
                    self._running[slot.submit(job)] = slot
            done, _ = wait(self._running, LOOK_EVERY, FIRST_COMPLETED)
            for slot in self._running.values():
                told = slot.hear()
                if self._board is not None and told is not None and slot.job is not None:
                    self._board.show(slot.job.label, *told)
                if self._stopping:
                    slot.stop()
            for future in done:
                slot = self._running.pop(future)
                ran, slot.job = slot.job, None
                assert ran is not None
                ended = self._end_of(future, ran, slot)
                if ended is not None:
                    if self._board is not None:
                        self._board.end(ran.label, ended.told)
                    yield ran, ended
        if self._jobs:
            yield self._jobs[0], Ended(interrupted=True)

    def _end_of(self, future: Future[Ended], job: Job, slot: _Slot) -> Ended | None:
        """How a job ended; None if its process was killed and the job goes on in another one."""
        try:
            return future.result()
        except BrokenProcessPool:
            slot.hear()
            slot.close()
        if self._stopping:
            return Ended(interrupted=True)
        if job.deaths + 1 >= MAX_DEATHS:
            told = f"{MAX_DEATHS} processes of {job.label} were killed, most likely since memory "
            told += "ran short: resume=auto goes on, with fewer runs at a time "
            told += "(experiment.parallel or search.parallel)"
            return Ended(error=RunError(told))
        job = replace(job, deaths=job.deaths + 1)
        if slot.begun or not job.plan.config.overwrite:  # else its folder has the run to replace
            config = job.plan.config.copy()
            config.resume, config.overwrite = "auto", False
            job = replace(job, plan=replace(job.plan, config=config), experiment=None)
        self._jobs.appendleft(job)
        return None
