"""All runs of a configuration: one, or every cell of its experiment."""

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from fl_app import report
from fl_app.core.errors import Interrupted, RunError
from fl_app.core.files import disk_errors_as_run_errors
from fl_app.runner import earlier
from fl_app.runner.cell import run_cell
from fl_app.runner.validate import checked_cells

if TYPE_CHECKING:
    from flwr.serverapp import Grid


def run(
    config: DictConfig,
    overrides: Sequence[str],
    folder: Path,
    grid: "Grid | None" = None,
    shared: Path | None = None,
    cells: Mapping[str, DictConfig] | None = None,
) -> list[dict[str, Any]]:
    """Run what the configuration says: one run, or every cell of its experiment.

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
    earlier.refuse_held(folder, cells)
    done = {name: earlier.finished(cell, folder / name) for name, cell in cells.items()}
    with disk_errors_as_run_errors(folder):
        return _run(cells, done, overrides, folder, config.experiment.report_accuracy, grid, shared)


def _run(
    cells: Mapping[str, DictConfig],
    done: Mapping[str, dict[str, Any] | None],
    overrides: Sequence[str],
    folder: Path,
    target: float | None,
    grid: "Grid | None",
    shared: Path | None,
) -> list[dict[str, Any]]:
    summaries = []
    problem: RunError | None = None
    for number, (name, cell) in enumerate(cells.items(), 1):
        before = done[name]
        if before is not None:
            summaries.append(before)
            continue
        outcome, summary = run_cell(
            cell,
            folder / name,
            label=f"{name}, cell {number} of {len(cells)}" if name else cell.algorithm.name,
            grid=grid,
            overrides=overrides,
            experiment=folder if name else None,
        )
        summaries.append(summary)
        problem, stopped = outcome.error or problem, outcome.stopped
        # The engine and its callbacks refer to each other, and hold all vectors of the run.
        del outcome
        gc.collect()
        if stopped == "interrupted":
            problem = Interrupted(f"interrupted; what was done so far lies in {folder}")
            break
    figures = not isinstance(problem, Interrupted)  # after Ctrl-C, the user does not wait for them
    table = report.write_report(folder, target, figures=figures, shared=shared)
    report.print_table(table)
    print(f"Files{', table and figures' if figures else ' and table'}: {folder}")
    print(f"Report, to open in a browser: {folder / report.PAGE}")
    if problem is not None:
        raise problem
    if "" not in cells:
        print(f"All {len(cells)} cells are done")
    return summaries
