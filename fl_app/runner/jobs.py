"""Carries out runs: one after the other in this process, or side by side in processes."""

import gc
import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

import fl_app.cli  # noqa: F401 - registers the resolvers of conf/, also in a spawned process
from fl_app.client.gpus import gpus_of
from fl_app.core.errors import RunError
from fl_app.runner import signals
from fl_app.runner.cell import run_cell
from fl_app.runner.given import NOTHING, Given

if TYPE_CHECKING:
    from flwr.serverapp import Grid

LOOK_EVERY = 0.1  # wall seconds between two looks at whether the runs are to stop
KILLED = (
    "a process was killed, most likely since memory ran short: resume=auto goes on, with fewer "
    "runs at a time (experiment.parallel or search.parallel)"
)


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
    """

    name: str
    plan: Plan
    folder: Path
    label: str


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        summary: of the run; None if it was refused, or ended before it had one.
        problem: a `RunError` that ended the run early, or the `ValueError` by which it was refused,
            such as of data that do not fit the clients.
        interrupted: whether Ctrl-C came during the run, even if too late to end it, or kept it from
            beginning.
    """

    summary: dict[str, Any] | None = None
    problem: ValueError | RunError | None = None
    interrupted: bool = False


def carry_out(
    jobs: Sequence[Job], parallel: int = 1, *, grid: "Grid | None" = None, show: bool = True
) -> Iterator[tuple[Job, Ended]]:
    """Carry out jobs, and yield each with its end. After Ctrl-C no further job begins.

    If one of several processes is killed, all jobs that have not ended fail.

    Args:
        jobs: first comes first.
        parallel: processes, each with one job at a time; 1 = all jobs run in this process.
        grid: of the ServerApp, for the runtimes that need one; only with `parallel` 1.
        show: whether to show progress.

    Raises:
        OSError: the disk is full or fails.
    """
    jobs = [_with_its_share(job, parallel) for job in jobs]
    if parallel > 1:
        yield from _side_by_side(jobs, parallel, show)
        return
    for job in jobs:
        ended = _run(job, show, grid)
        yield job, ended
        if ended.interrupted:
            return


def _run(job: Job, show: bool, grid: "Grid | None" = None) -> Ended:
    if signals.asked():
        return Ended(interrupted=True)
    plan = job.plan
    try:
        outcome, summary = run_cell(
            plan.config,
            job.folder,
            label=job.label,
            grid=grid,
            overrides=plan.overrides,
            given=plan.given,
            show=show,
        )
    except ValueError as error:
        return Ended(problem=error)
    ended = Ended(summary, outcome.error, interrupted=outcome.asked_to_stop)
    # The engine and its callbacks refer to each other, and hold all vectors of the run.
    del outcome
    gc.collect()
    return ended


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


def _side_by_side(jobs: list[Job], parallel: int, show: bool) -> Iterator[tuple[Job, Ended]]:
    stopping = told = False

    def stop() -> None:
        nonlocal stopping
        stopping = True

    others = {*multiprocessing.active_children()}
    known = [name for name in logging.root.manager.loggerDict]
    levels = {name: level for name in known if (level := logging.getLogger(name).level)}
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
    with (
        signals.interruptible(stop) as patient,
        patient(),
        ProcessPoolExecutor(parallel, context, _begin, (levels,)) as pool,
    ):
        # Ctrl-C waits until a process can handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
        try:
            futures = {pool.submit(_run, job, show): job for job in jobs}
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.HANDLED)
        waiting = {*futures}
        try:
            while waiting:
                done, waiting = wait(waiting, LOOK_EVERY, FIRST_COMPLETED)
                for future in done:
                    yield futures[future], _end_of(future)
                    if isinstance(future.cancelled() or future.exception(), BrokenProcessPool):
                        _send(signal.SIGKILL, others)  # the others would wait for what is broken
                if stopping and not told:
                    told = True
                    for future in waiting:
                        future.cancel()
                    _send(signal.SIGINT, others)
        except BaseException:
            _send(signal.SIGKILL, others)
            raise


def _end_of(future: Future[Ended]) -> Ended:
    try:
        return future.result()
    except CancelledError:
        return Ended(interrupted=True)
    except BrokenProcessPool:
        return Ended(problem=RunError(KILLED))


def _begin(levels: dict[str, int]) -> None:
    """Prepare a process for its jobs, with the levels of the main process's loggers."""
    signals.follow()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _send(number: signal.Signals, others: set[multiprocessing.process.BaseProcess]) -> None:
    for process in {*multiprocessing.active_children()} - others:
        with suppress(ProcessLookupError):
            os.kill(process.pid or 0, number)
