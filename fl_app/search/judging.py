"""Judging: the best setting of every cell runs again, on fresh seeds."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import hydra
from omegaconf import OmegaConf

from fl_app.report import print_table
from fl_app.runner.jobs import Plan
from fl_app.runner.run import run_cells
from fl_app.runner.validate import checked_cells
from fl_app.search import results, space
from fl_app.search.cell import require_full_length
from fl_app.search.cells import budget_words
from fl_app.search.settings import Settings


def judge(
    found: Sequence[results.Found], settings: Settings, words: Sequence[str], folder: Path
) -> None:
    """Run the best setting of every cell on fresh seeds, and write the usual report.

    Args:
        found: what the search has come to in each cell.
        settings: of the search.
        words: overrides that describe the experiment.
        folder: of the search; the runs go to ``test/``.

    Raises:
        Interrupted: Ctrl-C; the same search goes on with ``resume=auto``.
        RunError: a run failed.
        ValueError: `num_versions` ended a run before the others.
    """
    best = {each.name: each.best for each in found if each.best}
    for each in found:
        if each.name not in best:
            print(f"{each.name} is not judged: none of its trials was completed")
    if not best:
        return
    own = [*words, *budget_words(settings)]
    plans = {
        f"{name}-seed{seed}": _best_plan(name, values, seed, own)
        for name, values in best.items()
        for seed in settings.test_seeds
    }
    target = next(iter(plans.values())).config.experiment.report_accuracy
    ran = run_cells(plans, folder / "test", target, parallel=settings.parallel)
    print_table(ran.table)
    print(f"The best settings on fresh seeds: {folder / 'test'}")
    ran.refuse_incomplete(folder)
    budgets = {each.name: each.budget for each in found}
    for name, summary in ran.summaries.items():
        require_full_length(name, summary, budgets[name.rpartition("-seed")[0]])


def _best_plan(name: str, values: Sequence[str], seed: int, words: Sequence[str]) -> Plan:
    """The run of a cell's best setting with a fresh seed."""
    own = [
        *words,
        "experiment.seeds=null",
        f"experiment.only=['{name}']",
        "resume=auto",
        "checkpoint_final=false",  # no run is extended: the budget of a study is fixed
    ]
    config = hydra.compose("config", overrides=own)
    own += [*values, f"seed={seed}"]  # after the words, which may set the same keys
    (cell,) = checked_cells(config, own).values()
    return Plan(cell, own)


def remove_outdated(folder: Path, found: Sequence[results.Found]) -> None:
    """Remove judged runs of settings that are no longer the best, so that no mean has both.

    Args:
        folder: of the judged runs.
        found: what the search has come to in each cell.
    """
    best = {each.name: {*each.best} for each in found}
    keys = {each.name: [*each.space] for each in found}
    for path in sorted(folder.glob("*/config.yaml")):
        before = OmegaConf.load(path)
        name, _, seed = path.parent.name.rpartition("-seed")
        if name in best and seed == str(OmegaConf.select(before, "seed")):
            had = {space.override(key, OmegaConf.select(before, key)) for key in keys[name]}
            if had == best[name]:
                continue
        print(f"{path.parent} is removed: its setting is no longer the best one of its cell")
        shutil.rmtree(path.parent)
