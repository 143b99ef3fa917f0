"""The cells that a search is about, with their spaces and one budget."""

from collections.abc import Sequence
from pathlib import Path

import hydra
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from fl_app.cli import nearest
from fl_app.core.errors import require
from fl_app.runner.validate import checked_cells
from fl_app.search import space
from fl_app.search.cell import SearchedCell
from fl_app.search.settings import Settings

# Keys that no space may have: the search sets them, or trials would have other lengths.
OWN = (
    *("seed", "max_updates", "max_seconds", "num_versions", "target_accuracy", "experiment"),
    *("resume", "overwrite", "checkpoint_final", "checkpoint_every"),
)
_UNKNOWN = object()


def cells_to_search(
    settings: Settings, config: DictConfig, words: Sequence[str], folder: Path
) -> list[SearchedCell]:
    """The cells of the experiment, each with its space and the same budget.

    Args:
        settings: of the search.
        config: composed from `words`.
        words: overrides that describe the experiment.
        folder: of the search.

    Raises:
        ValueError: there is no experiment, a key is refused, or budgets differ.
    """
    experiment = config.experiment
    require(
        bool(experiment.cells),
        "experiment",
        "null",
        "the name of an experiment, such as experiment=quickstart",
        "there are no cells to search",
    )
    for key in ("seeds", "parallel", "tuned"):
        given = any(word.startswith(f"experiment.{key}=") for word in words)
        instead = {"seeds": "search.seeds", "parallel": "search.parallel"}.get(key, "nothing")
        require(not given, f"experiment.{key}", "...", f"left out: use {instead}", "of no effect")
    own = [
        *words,
        *budget_words(settings),
        "experiment.seeds=null",
        f"experiment.parallel={settings.parallel}",  # it may be refused beside other keys
    ]
    config = hydra.compose("config", overrides=own)
    cells = checked_cells(config, own)
    common = space.words_of(settings.space) or list(experiment.space)
    searched = []
    for name, cell in cells.items():
        more = [] if settings.space else list(experiment.spaces.get(name.partition("@")[0], []))
        replaced = {_key(word) for word in more if word.endswith("=null")}
        parsed = space.parse([word for word in [*common, *more] if _key(word) not in replaced])
        require(
            bool(parsed), "search.space", "''", f"given for cell {name}", "there is nothing to try"
        )
        for key in parsed:
            value = OmegaConf.select(cell, key, default=_UNKNOWN)
            if value is _UNKNOWN or isinstance(value, DictConfig):  # or a group of keys
                known = list(pd.json_normalize(OmegaConf.to_container(cell)).columns)
                told = f"search.space: unknown key {key!r} of cell {name}{nearest(key, known)}"
                raise ValueError(told)
            require(
                key.partition(".")[0] not in OWN,
                "search.space",
                key,
                f"none of {', '.join(OWN)}",
                "the search sets it, or cells would be compared that learn for different times",
            )
        require(
            cell.target_accuracy is None,
            "target_accuracy",
            cell.target_accuracy,
            f"null in a search, for cell {name}",
            "the best trials would end before the others",
        )
        searched.append(SearchedCell(name, cell, parsed, settings, own, folder / "runs" / name))
    budgets = {cell.budget for cell in searched}
    require(
        len(budgets) == 1 and None not in next(iter(budgets)),
        "search.updates",
        settings.updates,
        "given, or search.seconds, unless all cells have the same max_updates or max_seconds",
        "cells would be compared that learn for different times",
    )
    key, limit = searched[0].budget_of_all
    require(
        all(rung < limit for rung in settings.rungs),
        "search.rungs",
        settings.rungs,
        f"below {key}={limit}",
        "a trial would have ended before",
    )
    return searched


def budget_words(settings: Settings) -> list[str]:
    """Overrides with the budget that a search gives; empty if the experiment has it."""
    if settings.seconds is not None:  # else the experiment's updates would end the runs
        return [f"max_seconds={settings.seconds}", "max_updates=null"]
    return [] if settings.updates is None else [f"max_updates={settings.updates}"]


def _key(word: str) -> str:
    return word.partition("=")[0]
