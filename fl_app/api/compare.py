"""A comparison of several runs from Python."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console

from fl_app.api.result import Reported, Result
from fl_app.api.run import carry_out, new_folder
from fl_app.api.settings import Setting, drop_overridden, plan_of
from fl_app.core.errors import explaining, require
from fl_app.record.summary import trouble_message
from fl_app.report.cells import group, read_run
from fl_app.runner.cell import Plan
from fl_app.runner.cells import NAME

if TYPE_CHECKING:
    from fl_app.tasks.task import Task

# Columns of the table that a comparison leaves out, and those with a meaningful spread.
OF_RUN = (
    *("cell", "algorithm", "statistic", "num_seeds", "label", "seed", "folder"),
    *("wall_updates_per_second", "score", "target_accuracy"),
)
SPREAD = ("final_", "best_", "last10_", "seconds_to_", "updates_to_", "mean_")
WIDTH = 120  # characters of a comparison as text


def compare(
    cells: Mapping[str, Setting | Sequence[Setting]],
    *settings: Setting,
    seeds: Sequence[int] = (0,),
    task: "Task | None" = None,
    output: str | PathLike[str] | None = None,
    progress: bool = True,
) -> "Comparison":
    """Run several federations, each with every seed, and compare them.

    The files are those of an experiment of the command line. If a run fails, a warning names it,
    and the others still run. Ctrl-C, or the interruption of a notebook's kernel, ends the
    comparison with the results so far.

    Args:
        cells: settings of each run, as of `fl_app.run`, by the run's name.
        settings: of all runs; a run's own value of the same key wins.
        seeds: each run is repeated with each of them. They also decide which client has which
            examples, unless the task has clients of its own.
        task: of all runs, as of `fl_app.run`.
        output: as of `fl_app.run`; with ``"resume=auto"`` its other runs are in the table, too.
        progress: whether to show bars.

    Returns:
        The comparison, read from the files.

    Raises:
        ValueError: a setting is refused; nothing was run.
        RunError: the disk is full or fails.
    """
    for key, value, kind, bound in (
        ("cells", cells, Mapping, "a dict such as {'fedbuff': ['algorithm=fedbuff']}"),
        ("seeds", seeds, Sequence, "a list such as [0, 1, 2]"),
    ):
        valid = isinstance(value, kind) and not isinstance(value, str)
        require(valid, key, value, bound, "runs have no other names")
    require(len(cells) > 0, "cells", cells, "at least one", "there would be nothing to run")
    seeds = list(seeds)
    unique = len(seeds) > 0 and len(set(seeds)) == len(seeds)
    require(unique, "seeds", seeds, "at least one, each once", "runs would be equal")
    plans: dict[str, Plan] = {}  # by the names of the runs' folders
    for name, own in cells.items():
        # Numbers are the jobs of a sweep, which a report names after their overrides.
        plain = isinstance(name, str) and bool(name) and name.strip(" .") == name == Path(name).name
        valid = plain and not name.isdigit()
        require(valid, "cells", repr(name), "the name of a folder, and no number", "it names one")
        NAME.check("cells", name, "a report would take it for a seed of another")
        mine = list(own) if isinstance(own, Sequence) and not isinstance(own, str) else [own]
        for seed in seeds:
            suffix = "" if len(seeds) == 1 else f"-seed{seed}"
            with explaining(name):
                plan = plan_of([*drop_overridden(settings, mine), *mine], task, seed)
            plan.config.experiment.only = [*cells]  # a report orders the cells by it
            plans[name + suffix] = plan
    folder = new_folder() if output is None else Path(output).expanduser()
    for name, problem in carry_out(plans, folder, show=progress, figures=True).items():
        warnings.warn(f"{name}: {type(problem).__name__}: {problem}", stacklevel=2)
    return Comparison(folder)


class Comparison(Reported):
    """The results of a comparison, read from its files.

    It also reads an experiment of the command line: ``Comparison("outputs/DATE/TIME")``.

    Args:
        folder: with a folder for each run.

    Raises:
        ValueError: the folder holds no run.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        super().__init__(folder)
        self._cells = read_run(self._folder)

    @cached_property
    def results(self) -> dict[str, list[Result]]:
        """The results of each run by its name, one per seed."""
        return {
            series.name: [Result(self._folder / cell.folder) for cell in series.cells]
            for series in group(self._cells)
        }

    @property
    def table(self) -> pd.DataFrame:
        """A row per run: means over the seeds, and in ``..._std`` sample deviations (n - 1).

        The columns are those of ``table.csv`` (`fl_app.report.Table`). A value is missing where it
        is unknown for a seed.
        """
        rows = {}
        for mean, std in self._rows.of_series():
            row: dict[str, object] = {"seeds": mean["num_seeds"]}
            for field, value in mean.items():
                if field not in OF_RUN:
                    row[field] = value
                if std is not None and field.startswith(SPREAD):
                    row[f"{field}_std"] = std[field]
            rows[mean["label"]] = row
        frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("run")
        numbers = frame.columns.drop(["seeds", "work_per_update", "stopped"])
        return frame.astype(dict.fromkeys(numbers, float))  # None is NaN

    def __repr__(self) -> str:
        console = Console(width=WIDTH, force_terminal=True, force_jupyter=False, color_system=None)
        with console.capture() as output:
            self._rows.print(console)
        trouble = trouble_message({cell.name: cell.summary for cell in self._cells})
        return "\n".join(filter(None, (output.get().rstrip(), trouble, f"Files: {self._folder}")))
