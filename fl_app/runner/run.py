"""All runs of a configuration: one, or every cell of its experiment."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from fl_app import report
from fl_app.core.errors import Interrupted, RunError
from fl_app.core.files import disk_errors_as_run_errors
from fl_app.record.summary import told_of_trouble
from fl_app.report.cells import is_cell
from fl_app.runner import earlier
from fl_app.runner.equal import told_of_kept
from fl_app.runner.jobs import Job, Plan, carry_out
from fl_app.runner.validate import checked_cells

if TYPE_CHECKING:
    from flwr.serverapp import Grid


@dataclass(frozen=True)
class Ran:
    """What running some cells came to.

    Attributes:
        summaries: of the cells that ran, or had run before, by name.
        problems: of the cells that failed, by name.
        interrupted: whether Ctrl-C ended the cells.
    """

    summaries: dict[str, dict[str, Any]]
    problems: dict[str, RunError]
    interrupted: bool

    def refuse_incomplete(self, folder: Path) -> None:
        """Raise what kept cells from their ends.

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
    config: DictConfig,
    overrides: Sequence[str],
    folder: Path,
    grid: "Grid | None" = None,
    cells: Mapping[str, DictConfig] | None = None,
) -> list[dict[str, Any]]:
    """Run what the configuration says, print the table, and name the files.

    Args:
        config: composed from ``conf/``.
        overrides: the user's own; they win over those of an experiment's cells.
        folder: for the files; every cell has its own folder in it.
        grid: of the ServerApp, for the runtimes that need one.
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
    if config.experiment.scale == "reduced" and config.experiment.reduced is not None:
        print(f"Reduced: every run has 1/{config.experiment.reduced:g} of its full length")
    ran = run_cells(
        plans,
        folder,
        config.experiment.report_accuracy,
        parallel=config.experiment.parallel,
        grid=grid,
        tell=report.Table.print,
    )
    print(f"Files: {folder}")
    if told := report.no_pictures():
        print(f"No report for a browser: {told}")
    else:
        print(f"Report, to open in a browser: {folder / report.PAGE}")
    if "" not in cells and not (ran.problems or ran.interrupted):
        print(f"All {len(cells)} cells are done")
    ended = {name: each for name, each in ran.summaries.items() if name not in ran.problems}
    if told := told_of_trouble(ended):
        print(told)
    ran.refuse_incomplete(folder)
    return list(ran.summaries.values())


def run_cells(
    plans: Mapping[str, Plan],
    folder: Path,
    target: float | None,
    *,
    parallel: int = 1,
    grid: "Grid | None" = None,
    show: bool = True,
    figures: bool = True,
    tell: Callable[[report.Table], object] | None = None,
) -> Ran:
    """Run every cell, and write the report. A cell that fails does not keep others from running.

    One after the other, a first cell that is refused does: most likely, the others would be, too.

    Args:
        plans: cells by the names of their folders in `folder`; "" is the folder itself.
        folder: for the files.
        target: the accuracy to which the report measures times, in (0, 1].
        parallel: processes, >= 1, that run a cell each; 1 = one cell after the other, in this
            process.
        grid: of the ServerApp, for the runtimes that need one.
        show: whether to show progress.
        figures: whether the report has figures; it has none after Ctrl-C.
        tell: as of `fl_app.report.write_report`.

    Raises:
        ValueError: a configuration is refused, or the folder holds another run.
        RunError: the disk is full or fails.
    """
    if show:
        for line in told_of_kept({earlier.label(n): plan.config for n, plan in plans.items()}):
            print(line)
    with disk_errors_as_run_errors(folder):
        done = earlier.enter(folder, {name: plan.config for name, plan in plans.items()})
        jobs = [
            Job(
                name,
                plan,
                folder / name,
                f"{name}, cell {number} of {len(plans)}" if name else plan.config.algorithm.name,
            )
            for number, (name, plan) in enumerate(plans.items(), 1)
            if name not in done
        ]
        summaries, problems, interrupted = dict(done), dict[str, RunError](), False
        begun, refused = 0, None
        for job, ended in carry_out(jobs, min(parallel, max(len(jobs), 1)), grid=grid, show=show):
            begun += 1
            if isinstance(ended.problem, ValueError):
                refused = ended.problem
                if parallel == 1 and not summaries:
                    break
                problems[job.name] = RunError(str(refused))
            elif ended.problem is not None:
                problems[job.name] = ended.problem
            if ended.summary is not None:
                summaries[job.name] = ended.summary
            # At the end of the last run, Ctrl-C comes too late.
            early = ended.summary is None or ended.summary["stopped"] == "interrupted"
            interrupted |= ended.interrupted and early
        interrupted |= begun < len(jobs)
        if refused is not None and not summaries:
            raise refused
        if any(is_cell(folder / name) for name in plans):
            drawn = figures and not interrupted  # after Ctrl-C, the user does not wait for them
            report.write_report(folder, target, figures=drawn, tell=tell, must_draw=False)
    return Ran(
        {name: summaries[name] for name in plans if name in summaries},
        {name: problems[name] for name in plans if name in problems},
        interrupted,
    )
