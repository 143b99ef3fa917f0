"""A run from Python."""

import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from threadpoolctl import threadpool_limits

from fl_app.api.result import Result
from fl_app.api.settings import Setting, plan_of
from fl_app.core.errors import RunError
from fl_app.record.summary import trouble_message
from fl_app.report.cells import is_cell
from fl_app.runner.cell import Plan
from fl_app.runner.run import Results, run_cells

if TYPE_CHECKING:
    from fl_app.tasks.task import Task


def run(
    *settings: Setting,
    task: "Task | None" = None,
    output: str | PathLike[str] | None = None,
    progress: bool = True,
) -> Result:
    """Run one federation, and write the files of the command line, except its figures.

    Ctrl-C, or the interruption of a notebook's kernel, ends the run early; the result is the part
    of the run until then, and ``summary["stopped"]`` is ``"interrupted"``. A run in a thread other
    than the main one cannot be interrupted in this way.

    Args:
        settings: in any order: overrides, as on the command line (``"algorithm=fedbuff"``); a
            strategy (`fl_app.strategy.AsyncStrategy`), in place of ``algorithm=``; a schedule
            (`fl_app.schedule`), in place of ``algorithm/schedule=``; a trainer, that is a subclass
            of `fl_app.client.LocalTrainer` or a function that makes one. A strategy brings its
            schedule and, if it `needs` one, its trainer.
        task: data, model, loss and metrics, in place of ``task=``; if it has clients, also in place
            of ``partition=`` and ``num_clients=``.
        output: folder for the files; None = ``outputs/DATE/TIME``. A folder that holds a run is
            refused without ``"resume=auto"``.
        progress: whether to show a bar.

    Returns:
        The result, read from the files on access.

    Raises:
        ValueError: a setting is refused; nothing was run.
        RunError: the run could not go on; its files are written.
    """
    plan = plan_of(settings, task)
    folder = new_folder() if output is None else Path(output).expanduser()
    # Figures take seconds, and a result draws its own.
    for problem in carry_out({"": plan}, folder, show=progress, figures=False).values():
        raise problem
    return Result(folder)


def carry_out(
    plans: Mapping[str, Plan], folder: Path, *, show: bool, figures: bool
) -> dict[str, RunError]:
    """Call `fl_app.runner.run.run_cells`, and restore the state of this process.

    After Ctrl-C it prints how to resume. It raises KeyboardInterrupt only if nothing was done.

    Returns:
        The problems of the cells that failed, by name.
    """
    threads = torch.get_num_threads()
    try:
        with threadpool_limits(1), torch.random.fork_rng(devices=[]):
            results = run_cells(plans, folder, show=show, figures=figures)
    except KeyboardInterrupt:  # before the first order, or while the report was written
        if not any(is_cell(folder / name) for name in plans):
            raise
        results = Results({}, {}, interrupted=True)
    finally:
        torch.set_num_threads(threads)
    if show and (message := trouble_message(results.summaries)):
        print(message)
    if results.interrupted:
        print(f'interrupted; to go on, add output="{folder}" and "resume=auto" to the same call')
    return results.problems


def new_folder() -> Path:
    """A folder that does not exist, named after the time as those of the command line."""
    folder = Path("outputs") / time.strftime("%Y-%m-%d/%H-%M-%S")
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{folder.name.partition('_')[0]}_{number}")
    return folder
