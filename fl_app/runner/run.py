"""All runs of a configuration: one, or every cell of its experiment."""

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from fl_app import report
from fl_app.core.errors import Interrupted, RunError
from fl_app.core.files import disk_errors_as_run_errors
from fl_app.record.trouble import told_of_trouble
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
    print(f"Files{', table and figures' if ran.figures else ' and table'}: {folder}")
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
    configs = {name: plan.config for name, plan in plans.items()}
    if show:
        for line in told_of_kept({earlier.label(name): each for name, each in configs.items()}):
            print(line)
    earlier.refuse_held(folder, configs)
    done = {name: earlier.finished(config, folder / name) for name, config in configs.items()}
    outdated = earlier.outdated(folder, configs)
    overwrite = any(config.overwrite for config in configs.values())
    if outdated and not overwrite:
        raise ValueError(
            f"{outdated[0]} is a run of a cell with another configuration, or with a seed that the "
            "cell has under another name: it would be in the cell's means; give another folder, "
            "or overwrite=true to replace the runs"
        )
    with disk_errors_as_run_errors(folder):
        for path in outdated:
            earlier.remove_run(path)
        return _run(plans, done, folder, target, parallel, grid, show, figures, tell)


def _run(
    plans: Mapping[str, Plan],
    done: Mapping[str, dict[str, Any] | None],
    folder: Path,
    target: float | None,
    parallel: int,
    grid: "Grid | None",
    show: bool,
    figures: bool,
    tell: Callable[[report.Table], object] | None,
) -> Ran:
    summaries = {name: before for name, before in done.items() if before is not None}
    problems: dict[str, RunError] = {}
    refused: ValueError | None = None
    interrupted = False
    jobs: deque[Job] = deque()
    for number, (name, plan) in enumerate(plans.items(), 1):
        if done[name] is None:
            label = f"{name}, cell {number} of {len(plans)}" if name else plan.config.algorithm.name
            # Of cells side by side, one alone removes what else the folder held.
            alone = folder if name and (parallel == 1 or not jobs) else None
            jobs.append(Job(name, plan, folder / name, label, alone))
    for job, ended in carry_out(jobs, min(parallel, max(len(jobs), 1)), grid=grid, show=show):
        if ended.refused is not None:  # such as by data that do not fit the cell's clients
            if not summaries and parallel == 1:  # nothing was run
                raise ended.refused
            refused = ended.refused
            problems[job.name] = RunError(str(refused))
        if ended.error is not None:
            problems[job.name] = ended.error
        if ended.summary is not None:
            summaries[job.name] = ended.summary
        # After the last run, Ctrl-C came too late if that run reached its end.
        early = bool(jobs) or ended.summary is None or ended.summary["stopped"] == "interrupted"
        interrupted = interrupted or (ended.interrupted and early)
    if refused is not None and not summaries:
        raise refused
    if summaries and "" not in plans and any(plan.config.overwrite for plan in plans.values()):
        earlier.remove_run(folder)  # the first cell did, unless it was refused
    # After Ctrl-C, the user does not wait for them.
    figures = figures and not interrupted and not report.no_pictures()
    table = report.write_report(folder, target, figures=figures, tell=tell)
    summaries = {name: summaries[name] for name in plans if name in summaries}
    problems = {name: problems[name] for name in plans if name in problems}
    return Ran(table, figures, summaries, problems, interrupted)
