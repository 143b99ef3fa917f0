"""All runs of a configuration: one, or every cell of its experiment."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from fl_app import report
from fl_app.core.errors import Interrupted, RunError
from fl_app.core.files import disk_errors_as_run_errors
from fl_app.runner import earlier
from fl_app.runner.cell import run_cell
from fl_app.runner.given import NOTHING, Given
from fl_app.runner.validate import checked_cells

if TYPE_CHECKING:
    from flwr.serverapp import Grid


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
class Ran:
    """What running some cells came to.

    Attributes:
        table: of the report.
        figures: whether the report has them.
        summaries: of the cells that ran, or had run before, by name.
        problems: of the cells that failed, by name.
        interrupted: whether Ctrl-C ended the cells.
    """

    table: report.Table
    figures: bool
    summaries: dict[str, dict[str, Any]]
    problems: dict[str, RunError]
    interrupted: bool


def run(
    config: DictConfig,
    overrides: Sequence[str],
    folder: Path,
    grid: "Grid | None" = None,
    shared: Path | None = None,
    cells: Mapping[str, DictConfig] | None = None,
) -> list[dict[str, Any]]:
    """Run what the configuration says, print the table, and name the files.

    Args:
        config: composed from ``conf/``.
        overrides: the user's own; they win over those of an experiment's cells.
        folder: for the files; every cell has its own folder in it.
        grid: of the ServerApp, for the runtimes that need one.
        shared: as of `fl_app.report.write_report`.
        cells: the result of `fl_app.runner.validate.checked_cells`; None = call it.

    Returns:
        The summaries, one per cell.

    Raises:
        ValueError: the configuration is refused; nothing was run.
        RunError: a run failed or was interrupted. Its files and the report are written, unless
            the disk is full.
    """
    if cells is None:
        cells = checked_cells(config, overrides)
    plans = {name: Plan(cell, overrides) for name, cell in cells.items()}
    ran = run_cells(plans, folder, config.experiment.report_accuracy, grid=grid, shared=shared)
    report.print_table(ran.table)
    print(f"Files{', table and figures' if ran.figures else ' and table'}: {folder}")
    if told := report.no_pictures():
        print(f"No report for a browser: {told}")
    else:
        print(f"Report, to open in a browser: {folder / report.PAGE}")
    if ran.interrupted:
        raise Interrupted(f"interrupted; what was done so far lies in {folder}")
    if ran.problems:
        raise list(ran.problems.values())[-1]
    if "" not in cells:
        print(f"All {len(cells)} cells are done")
    return list(ran.summaries.values())


def run_cells(
    plans: Mapping[str, Plan],
    folder: Path,
    target: float | None,
    *,
    grid: "Grid | None" = None,
    shared: Path | None = None,
    show: bool = True,
    figures: bool = True,
) -> Ran:
    """Run every cell, and write the report. A cell that fails does not keep others from running.

    Args:
        plans: cells by the names of their folders in `folder`; "" is the folder itself.
        folder: for the files.
        target: the accuracy to which the report measures times, in (0, 1].
        grid: of the ServerApp, for the runtimes that need one.
        shared: as of `fl_app.report.write_report`.
        show: whether to show progress.
        figures: whether the report has figures; it has none after Ctrl-C.

    Raises:
        ValueError: a configuration is refused, or the folder holds another run.
        RunError: the disk is full or fails.
    """
    configs = {name: plan.config for name, plan in plans.items()}
    earlier.refuse_held(folder, configs)
    done = {name: earlier.finished(config, folder / name) for name, config in configs.items()}
    with disk_errors_as_run_errors(folder):
        return _run(plans, done, folder, target, grid, shared, show, figures)


def _run(
    plans: Mapping[str, Plan],
    done: Mapping[str, dict[str, Any] | None],
    folder: Path,
    target: float | None,
    grid: "Grid | None",
    shared: Path | None,
    show: bool,
    figures: bool,
) -> Ran:
    summaries: dict[str, dict[str, Any]] = {}
    problems: dict[str, RunError] = {}
    interrupted = False
    for number, (name, plan) in enumerate(plans.items(), 1):
        before = done[name]
        if before is not None:
            summaries[name] = before
            continue
        try:
            outcome, summaries[name] = run_cell(
                plan.config,
                folder / name,
                label=f"{name}, cell {number} of {len(plans)}"
                if name
                else plan.config.algorithm.name,
                grid=grid,
                overrides=plan.overrides,
                experiment=folder if name else None,
                given=plan.given,
                show=show,
            )
        except ValueError as error:  # such as data that do not fit the cell's clients
            if not summaries:  # nothing was run
                raise
            problems[name] = RunError(str(error))
            continue
        if outcome.error is not None:
            problems[name] = outcome.error
        interrupted = outcome.stopped == "interrupted"
        # The engine and its callbacks refer to each other, and hold all vectors of the run.
        del outcome
        gc.collect()
        if interrupted:
            break
    # After Ctrl-C, the user does not wait for them.
    figures = figures and not interrupted and not report.no_pictures()
    table = report.write_report(folder, target, figures=figures, shared=shared)
    return Ran(table, figures, summaries, problems, interrupted)
