"""The configurations of an experiment's cells."""

import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from fl_app.cli import dotted, refuse_epochs, refuse_surplus
from fl_app.core.errors import require
from fl_app.core.hyper import COUNT, Bound, or_none, several

FILLED = several("a list such as [a,b]", lambda entry: True)
LIST = Bound(FILLED.text, lambda value: value == [] or FILLED.holds(value))
NAME = Bound("without -seedN at its end", lambda value: not re.search(r"-seed\d+$", value))


def compose_cells(config: DictConfig, overrides: Sequence[str]) -> dict[str, DictConfig]:
    """The configuration of every cell, by the name of its folder; "" = a run without experiment.

    Args:
        config: composed from `overrides`.
        overrides: the user's.

    Raises:
        ValueError: as `equalise` or `refuse_epochs`; the experiment has no such cell, sets the
            algorithm itself, has both seeds and a seed, or cannot run so many cells in parallel.
    """
    experiment, user_keys = config.experiment, override_keys(overrides)
    _check(experiment, config.runtime)
    if not experiment.cells:
        refuse_epochs(config, overrides)
        equalise(config, user_keys)
        return {"": config}
    if any(override.startswith("algorithm=") for override in overrides):
        raise ValueError(
            f"experiment={experiment.name} compares algorithms of its own: leave algorithm= out, "
            f"or choose cells with experiment.only=[...] among {', '.join(experiment.cells)}"
        )
    lists = _non_null(experiment.cells)
    require(bool(lists), "experiment.cells", "{}", "cells that are not null", "nothing would run")
    settings = _non_null(experiment.settings) or {"": []}
    options = {
        f"{cell}@{setting}" if setting else cell: [*common, *words]
        for setting, common in settings.items()
        for cell, words in lists.items()
    }
    words = [*overrides, *experiment.overrides, *(w for words in options.values() for w in words)]
    seed_words = [word.lstrip("+") for word in words if word.lstrip("+").startswith("seed=")]
    if seed_words and experiment.seeds:
        raise ValueError(
            f"{seed_words[0]} must be left out with experiment.seeds={experiment.seeds}, or give "
            "experiment.seeds=null: all runs of a cell would have this seed, and their names others"
        )
    names = list(options)
    if experiment.only:
        names = list(dict.fromkeys(n for word in experiment.only for n in _select(word, options)))
    seeds = experiment.seeds or [None]
    unique = len(set(seeds)) == len(seeds)
    require(unique, "experiment.seeds", seeds, "seeds, each once", "runs would be equal")
    cells = {}
    for name in names:
        words = [*experiment.overrides, *options[name], *overrides]
        cell = compose("config", overrides=words)  # once, since it takes long
        refuse_surplus(cell, words)
        refuse_epochs(cell, overrides)
        equalise(cell, user_keys)
        for seed in seeds:
            own = cells[name if len(seeds) == 1 else f"{name}-seed{seed}"] = deepcopy(cell)
            own.seed = own.seed if seed is None else seed
    return cells


def override_keys(overrides: Sequence[str]) -> set[str]:
    """The keys that overrides set, also those within a group, as in ``client={local_steps: 3}``."""
    items = OverridesParser.create().parse_overrides(list(overrides))
    return {key for item in items for key in dotted(item.value(), item.key_or_group)}


def _non_null(lists: DictConfig) -> dict[str, Sequence[str]]:
    """Lists of overrides by name, without null, by which an experiment drops an inherited list."""
    entries = {str(name): words for name, words in lists.items() if words is not None}
    for name, words in entries.items():
        NAME.check("experiment: a cell", name, "a report would take it for a seed of another")
        LIST.check(f"experiment: {name}", words, "every entry is an override")
    return entries


def _check(experiment: DictConfig, runtime: DictConfig) -> None:
    for key in ("seeds", "only"):
        or_none(FILLED).check(f"experiment.{key}", experiment[key], "every entry is one of several")
    COUNT.check("experiment.parallel", experiment.parallel, "no cell would run")
    if experiment.cells:
        number, bound = experiment.parallel, f"1 with runtime={runtime.name}"
        fits, effect = number == 1 or runtime.name == "inprocess", "cells would compete for workers"
        require(fits, "experiment.parallel", number, bound, effect)
        return
    for key, default, effect in (
        ("parallel", 1, "there are no cells; runtime.workers trains clients side by side"),
        ("seeds", None, "there are no cells; use seed=, or -m seed=0,1,2"),
        ("only", None, "there are no cells"),
    ):
        bound = f"{'null' if default is None else default} without experiment=<name>"
        require(experiment[key] == default, f"experiment.{key}", experiment[key], bound, effect)


def _select(pattern: str, names: Collection[str]) -> list[str]:
    """The cells that an entry of ``experiment.only`` selects: CELL@SETTING, CELL, or @SETTING.

    Raises:
        ValueError: there are none.
    """
    parts = {name: name.partition("@") for name in names}
    matches = [n for n, (cell, *tail) in parts.items() if pattern in (n, cell, "".join(tail))]
    if not matches:
        raise ValueError(
            f"experiment.only names {pattern!r}, which is none of the cells {', '.join(names)}"
        )
    return matches


def equalise(cell: DictConfig, user_keys: Collection[str], *, own_schedule: bool = False) -> None:
    """Give a run the values of ``compare=equal``; list in ``compare.kept`` what it keeps.

    Args:
        cell: of the run; changed.
        user_keys: keys that the user gave; they stay.
        own_schedule: whether an object takes the place of the configured schedule.

    Raises:
        ValueError: a value is no number of clients, updates, epochs or steps.
    """
    compare = cell.get("compare")
    if compare is None:
        return
    for key in ("concurrency", "buffer_size", "local_epochs", "local_steps"):
        if compare[key] is not None or key in ("buffer_size", "local_epochs"):
            COUNT.check(f"compare.{key}", compare[key], "all algorithms would have it")
    client, schedule = cell.algorithm.client, cell.algorithm.schedule
    places = {key: key for key in ("concurrency", "buffer_size") if key in schedule}
    work = {key: key for key in ("local_epochs", "local_steps") if key in client}
    overlaps = "max_local_epochs" in cell.algorithm.strategy
    if own_schedule or overlaps:  # all clients take part in every exchange
        places = {}
    elif schedule._target_.endswith(".synchronous"):
        places = {"buffer_size": "concurrency"}  # a round has all clients that are at work
    if overlaps:  # as many epochs as a transfer takes
        work = {}
    elif "slot" in client:  # clients pause between epochs
        if compare.local_steps is not None:
            del work["local_steps"]
        if compare.local_epochs < 2:
            del work["local_epochs"]
    kept = [key for key in ("concurrency", "buffer_size") if key not in places.values()]
    if compare.concurrency == cell.num_clients and "concurrency" in kept and not own_schedule:
        kept.remove("concurrency")  # all clients are at work in any case
    if len(work) < 2 or client.upload == "gradient":  # which is of one mini-batch
        kept.append("local work")
    for group, keys in (("schedule", places), ("client", work)):
        for key, source in keys.items():
            full = f"algorithm.{group}.{key}"
            if full not in user_keys:
                OmegaConf.update(cell, full, f"${{compare.{source}}}")
    OmegaConf.update(cell, "compare.kept", kept, force_add=True)  # no key of the user's


def kept_notes(cells: Mapping[str, DictConfig]) -> list[str]:
    """One line for each setting that cells keep; the name "" is a run without experiment."""
    names: dict[str, list[str]] = {}
    for name, cell in cells.items():
        for key in OmegaConf.select(cell, "compare.kept") or ():
            names.setdefault(key, []).append(name or cell.algorithm.name)
    return [f"compare=equal: own {key} of {', '.join(owners)}" for key, owners in names.items()]
