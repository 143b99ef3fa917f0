"""All runs of a configuration: one, or every cell of its experiment, one by one or side by side."""

import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig

import fl_app.cli  # noqa: F401 - registers the resolvers of conf/, also in a spawned process
from fl_app import report
from fl_app.core.errors import Interrupted, RunError
from fl_app.core.files import disk_errors_as_run_errors
from fl_app.record.summary import trouble_message
from fl_app.report.cells import is_cell, label_of
from fl_app.runner import earlier, signals
from fl_app.runner.cell import Plan, run_cell
from fl_app.runner.cells import kept_notes

if TYPE_CHECKING:
    from flwr.serverapp import Grid

LOOK_EVERY = 0.1  # wall seconds between two checks for a stop
KILLED = (
    "a process was killed, most likely because memory ran short: resume=auto goes on, with "
    "fewer runs at a time (experiment.parallel or search.parallel)"
)


Job = tuple[Plan, Path, str, bool]  # plan, folder, label on the console, show progress


class RunEnd(NamedTuple):
    """How a run ended.

    Attributes:
        summary: of the run; None if it was refused, or did not begin because of Ctrl-C.
        problem: a `RunError` that ended the run early, or the `ValueError` that refused it, such as
            for data that do not fit the clients.
        stops: whether Ctrl-C came during the run, even if too late to end it.
    """

    summary: dict[str, Any] | None = None
    problem: ValueError | RunError | None = None
    stops: bool = False


class Results(NamedTuple):
    """The results of some cells.

    Attributes:
        summaries: of the cells that ran, or had run before, by name.
        problems: of the cells that failed, by name.
        interrupted: whether Ctrl-C ended the cells.
    """

    summaries: dict[str, dict[str, Any]]
    problems: dict[str, RunError]
    interrupted: bool

    def refuse_incomplete(self, folder: Path) -> None:
        """Raise an error if cells failed or were interrupted.

        Args:
            folder: with the files.

        Raises:
            Interrupted: Ctrl-C ended the cells. Problems of cells are printed.
            RunError: the last problem, otherwise.
        """
        if self.interrupted:
            for name, problem in self.problems.items():
                print(f"error: {name}{': ' * bool(name)}{problem}", file=sys.stderr)
            raise Interrupted(f"interrupted; what was done so far lies in {folder}")
        if self.problems:
            raise list(self.problems.values())[-1]


def run(
    cells: Mapping[str, DictConfig],
    overrides: Sequence[str],
    folder: Path,
    grid: "Grid | None" = None,
) -> list[dict[str, Any]]:
    """Run all cells, print the table, and name the files.

    Args:
        cells: the result of `fl_app.runner.validate.checked_cells`.
        overrides: the user's own.
        folder: for the files; every cell has its own folder in it.
        grid: of the ServerApp, for the runtimes that need one.

    Returns:
        The summaries, one per cell.

    Raises:
        ValueError: the configuration is refused; nothing was run.
        RunError: a run failed or was interrupted. Its files and the report are written, unless
            the disk is full.
    """
    plans = {name: Plan(cell, overrides) for name, cell in cells.items()}
    parallel = next(iter(cells.values())).experiment.parallel
    results = run_cells(plans, folder, parallel=parallel, grid=grid, tell=report.Table.print)
    print(f"Files: {folder}")
    print(report.where(folder))
    if "" not in cells and not (results.problems or results.interrupted):
        print(f"All {len(cells)} cells are done")
    summaries = {n: each for n, each in results.summaries.items() if n not in results.problems}
    if message := trouble_message(summaries):
        print(message)
    results.refuse_incomplete(folder)
    return list(results.summaries.values())


def run_cells(
    plans: Mapping[str, Plan],
    folder: Path,
    *,
    parallel: int = 1,
    pool: ProcessPoolExecutor | None = None,
    grid: "Grid | None" = None,
    show: bool = True,
    progress: Callable[[int], object] | None = None,
    figures: bool = True,
    tell: Callable[[report.Table], object] | None = None,
) -> Results:
    """Run every cell, and write the report. If a cell fails, the others still run.

    They do not if they run one by one and the first is refused: most likely, all would be refused.

    Args:
        plans: cells by the names of their folders in `folder`; "" is the folder itself.
        folder: for the files.
        parallel: processes, >= 1, that run a cell each; 1 = one cell after the other, in this
            process. If one of several is killed, all cells that have not ended fail.
        pool: of `processes`, for use in several calls; None = a new one.
        grid: of the ServerApp, for the runtimes that need one; only with `parallel` 1.
        show: whether every run shows its progress.
        progress: called after every run, with the number of those that ended.
        figures: whether the report has figures; it has none after Ctrl-C.
        tell: as of `fl_app.report.write_report`.

    Raises:
        ValueError: a configuration is refused, or the folder holds another run.
        RunError: the disk is full or fails.
    """
    if show:
        for line in kept_notes({label_of(n): plan.config for n, plan in plans.items()}):
            print(line)
    with disk_errors_as_run_errors(folder):
        previous = earlier.enter(folder, {name: plan.config for name, plan in plans.items()})
        jobs: dict[str, Job] = {}
        for number, (name, plan) in enumerate(plans.items(), 1):
            if name not in previous:
                label = f"{name}, cell {number} of {len(plans)}"
                label = label if name else plan.config.algorithm.name
                jobs[name] = plan, folder / name, label, show
        parallel = min(parallel, len(jobs))
        if parallel > 1:
            ends = _side_by_side(jobs, nullcontext(pool) if pool else processes(parallel))
        else:
            ends = _one_by_one(jobs, grid)
        summaries, problems = dict(previous), dict[str, RunError]()
        refusal: ValueError | None = None
        for number, (name, end) in enumerate(ends, 1):
            if progress:
                progress(number)
            if end.summary is not None:
                summaries[name] = end.summary
            if isinstance(end.problem, ValueError):
                refusal = end.problem
                problems[name] = RunError(str(refusal))
                if parallel <= 1 and not summaries:
                    break
            elif end.problem is not None:
                problems[name] = end.problem
        if refusal is not None and not summaries:
            raise refusal
        # At the end of the last run, Ctrl-C comes too late.
        interrupted = not {*jobs} <= {*summaries, *problems} or any(
            summaries[name]["stopped"] == "interrupted" for name in jobs if name in summaries
        )
        if any(is_cell(folder / name) for name in plans):
            figures = figures and not interrupted  # after Ctrl-C, the user does not wait for them
            report.write_report(folder, figures=figures, tell=tell, must_draw=False)
    return Results(
        {name: summaries[name] for name in plans if name in summaries},
        {name: problems[name] for name in plans if name in problems},
        interrupted,
    )


def _run(plan: Plan, folder: Path, label: str, show: bool, grid: "Grid | None" = None) -> RunEnd:
    if signals.stop_requested():
        return RunEnd(stops=True)
    try:
        outcome, summary = run_cell(plan, folder, label=label, grid=grid, show=show)
    except ValueError as error:
        return RunEnd(problem=error)
    end = RunEnd(summary, outcome.error, outcome.asked_to_stop)
    # The engine and its callbacks refer to each other, and hold all vectors of the run.
    del outcome
    gc.collect()
    return end


def _one_by_one(jobs: Mapping[str, Job], grid: "Grid | None") -> Iterator[tuple[str, RunEnd]]:
    """Carry out jobs in this process. After Ctrl-C no further one begins."""
    for name, job in jobs.items():
        end = _run(*job, grid)
        yield name, end
        if end.stops:
            return


def processes(number: int) -> ProcessPoolExecutor:
    """Processes that run cells side by side; each starts when it is needed first."""
    levels = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
    return ProcessPoolExecutor(number, context, _begin, (levels,))


def _side_by_side(
    jobs: Mapping[str, Job], executor: AbstractContextManager[ProcessPoolExecutor]
) -> Iterator[tuple[str, RunEnd]]:
    """Carry out jobs in processes. Ctrl-C stops those that run, and no further one begins.

    Raises:
        OSError: the disk is full or fails.
    """
    stopping = threading.Event()
    with signals.interruptible(stopping.set) as patient, patient(), executor as pool:
        # Ctrl-C waits until a process can handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
        try:
            futures = {pool.submit(_run, *job): name for name, job in jobs.items()}
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.HANDLED)
        waiting = {*futures}
        try:
            while waiting:
                done, waiting = wait(waiting, LOOK_EVERY, FIRST_COMPLETED)
                for future in done:
                    if not future.cancelled():
                        yield futures[future], _end_of(future)
                if stopping.is_set():
                    stopping.clear()
                    for future in waiting:
                        future.cancel()
                    _send(signal.SIGINT)
        except BaseException:
            _send(signal.SIGKILL)
            raise


def _end_of(future: "Future[RunEnd]") -> RunEnd:
    try:
        return future.result()
    except BrokenProcessPool:
        _send(signal.SIGKILL)  # the others would wait for the broken pool
        return RunEnd(problem=RunError(KILLED))


def _begin(levels: Mapping[str, int]) -> None:
    """Prepare a process for its jobs, with the levels of the main process's loggers."""
    signals.follow()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _send(number: signal.Signals) -> None:
    for process in multiprocessing.active_children():
        with suppress(ProcessLookupError):
            os.kill(process.pid or 0, number)
