"""The cells that a search is about, with their spaces and one budget."""

import copy
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import hydra
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from fl_app.cli import nearest
from fl_app.core.errors import require
from fl_app.runner.validate import checked_cells, validate_config
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
    left_out = {"seeds": ": use search.seeds", "parallel": ": use search.parallel", "tuned": ""}
    for key, instead in left_out.items():
        given = any(word.startswith(f"experiment.{key}=") for word in words)
        told = f"left out{instead}"
        require(not given, f"experiment.{key}", "...", told, "the search has values of its own")
    for word in words:
        told = "left out: use search.seeds"
        require(_key(word) != "seed", "seed", _value(word), told, "every trial sets it")
    own = [
        *words,
        *budget_words(settings),
        "experiment.seeds=null",
        f"experiment.parallel={settings.parallel}",  # it may be refused beside other keys
    ]
    config = hydra.compose("config", overrides=own)
    cells = checked_cells(config, own)
    for name, cell in cells.items():
        require(
            cell.target_accuracy is None,
            "target_accuracy",
            cell.target_accuracy,
            f"null in a search, for cell {name}",
            "the best trials would end before the others",
        )
    budget = _budget(settings, cells)
    _check_spaces(experiment)
    spaces = {name: _space(settings, experiment, name, cells) for name in cells}
    for word in words:
        first = all(_key(word) == next(iter(each)) for each in spaces.values())
        require(
            not first, _key(word), _value(word), "left out", "the search sets it in every trial"
        )
    for name, cell in cells.items():
        _refuse_out_of_bounds(name, cell, spaces[name])
    return [
        SearchedCell(name, cell, spaces[name], settings, own, folder / "runs" / name, budget)
        for name, cell in cells.items()
    ]


def _budget(settings: Settings, cells: Mapping[str, DictConfig]) -> tuple[str, float]:
    """Which limit ends the runs of all cells, and its value."""
    by_time = [settings.seconds is not None or cell.max_updates is None for cell in cells.values()]
    keys = ["max_seconds" if each else "max_updates" for each in by_time]
    budgets = {(key, cell[key]) for key, cell in zip(keys, cells.values(), strict=True)}
    key, limit = next(iter(budgets))
    require(
        len(budgets) == 1 and limit is not None,
        "search.updates",
        settings.updates,
        "given, or search.seconds, unless all cells have the same max_updates or max_seconds",
        "cells would be compared that learn for different times",
    )
    rungs = settings.rungs
    whole = key == "max_seconds" or all(float(rung).is_integer() for rung in rungs)
    require(whole, "search.rungs", rungs, "integers", "they are client updates")
    below = all(rung < limit for rung in rungs)
    require(below, "search.rungs", rungs, f"below {key}={limit}", "a trial would have ended before")
    return key, limit


def _check_spaces(experiment: DictConfig) -> None:
    """Refuse words of `experiment.spaces` that would have no effect."""
    common = {_key(word) for word in experiment.space}
    for name, words in experiment.spaces.items():
        key = f"experiment.spaces.{name}"
        cell, at, setting = name.partition("@")
        # A setting that is null is inherited and left out, with its spaces.
        known = cell in experiment.cells and (not at or setting in experiment.settings)
        require(known, key, "...", "left out", f"there is no cell {name}")
        before = common | {_key(word) for word in experiment.spaces.get(cell) or [] if at}
        for word in words or []:
            known = not word.endswith("=null") or _key(word) in before
            require(known, key, word, "of a key of experiment.space", "nothing is left out")


def _space(
    settings: Settings, experiment: DictConfig, name: str, cells: Mapping[str, DictConfig]
) -> space.Space:
    """What is tried in a cell."""
    cell = cells[name]
    common = space.words_of(settings.space) or list(experiment.space)
    twice = [word for word in common if [*map(_key, common)].count(_key(word)) > 1]
    require(not twice, "search.space", " ".join(twice), "of keys given once", "one would be lost")
    tried = {_key(word): word for word in common}
    if not settings.space:  # then the cell's words in all settings, and its words in this one
        for each in dict.fromkeys((name.partition("@")[0], name)):
            for word in experiment.spaces.get(each) or []:
                if word.endswith("=null"):
                    tried.pop(_key(word), None)
                else:
                    tried[_key(word)] = word
    parsed = space.parse([*tried.values()])
    require(bool(parsed), "search.space", "''", f"given for cell {name}", "there is nothing to try")
    for key in parsed:
        value = OmegaConf.select(cell, key, default=_UNKNOWN)
        if value is _UNKNOWN or isinstance(value, DictConfig):  # or a group of keys
            known = list(pd.json_normalize(OmegaConf.to_container(cell)).columns)
            having = [n for n, c in cells.items() if OmegaConf.select(c, key) is not None]
            own = [n.partition("@")[0] for n in having]
            hint = (
                f": give ++experiment.spaces.{own[0]}=['KEY=...']" if own else nearest(key, known)
            )
            if own and settings.space:
                hint += ", and experiment.space=['KEY=...'] in place of search.space"
            raise ValueError(f"search.space: unknown key {key!r} of cell {name}{hint}")
        require(
            key.partition(".")[0] not in OWN,
            "search.space",
            key,
            f"none of {', '.join(OWN)}",
            "the search sets it, or cells would be compared that learn for different times",
        )
    return parsed


def _refuse_out_of_bounds(name: str, cell: DictConfig, tried: space.Space) -> None:
    """Refuse a key with an end or a choice that is refused whatever the other keys are.

    These have all ends and choices. What only some combinations of values are refused for is not
    known before they are tried.
    """
    ends = {key: space.ends(each) for key, each in tried.items()}
    for key, values in ends.items():
        rest = {other: each for other, each in ends.items() if other != key}
        others = [dict(zip(rest, each, strict=True)) for each in product(*rest.values())]
        for value in values:
            problem = _refused(cell, {key: value})
            if problem and all(_refused(cell, {**each, key: value}) for each in others):
                whole = isinstance(value, float) and value.is_integer()
                integer = whole and not _refused(cell, {key: int(value)})
                hint = "; int(interval(...)) tries integers" if integer else ""
                told = space.override(key, value)
                raise ValueError(f"search.space, cell {name}, {told}: {problem}{hint}")


def _refused(cell: DictConfig, values: Mapping[str, object]) -> str:
    """Why a cell is refused with these values; "" if it is not."""
    changed = copy.deepcopy(cell)
    for key, value in values.items():
        OmegaConf.update(changed, key, value)
    try:
        validate_config(changed)
    except ValueError as error:
        return str(error)
    return ""


def budget_words(settings: Settings) -> list[str]:
    """Overrides with the budget that a search gives; empty if the experiment has it."""
    if settings.seconds is not None:  # else the experiment's updates would end the runs
        return [f"max_seconds={settings.seconds}", "max_updates=null"]
    return [] if settings.updates is None else [f"max_updates={settings.updates}"]


def _key(word: str) -> str:
    return word.lstrip("+").partition("=")[0]


def _value(word: str) -> str:
    return word.partition("=")[2]
