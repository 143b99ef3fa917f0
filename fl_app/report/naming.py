"""Names of a sweep's jobs: their algorithm, and the keys that were varied."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from fl_app.report.cells import Cell

SEED = "seed"


def name_jobs(jobs: Sequence[Cell]) -> None:
    """Set the names and labels of a sweep's jobs, such as ``fedasync local_lr=0.1``.

    A name begins with the algorithm or, if each job is an experiment, with the cell. It contains
    every key that was varied, by its shortest unambiguous end. A label is the name without the
    seed: jobs that differ only in their seed share it. Jobs with equal names, or with unknown
    overrides, are numbered.

    Args:
        jobs: of the sweep; the folder of each is the job's number, or the number and the cell's
            name.
    """
    settings = [settings_of(job) for job in jobs]
    known = {key for each in settings for key in each}
    words: list[list[str]] = [[] for _ in jobs]
    seeds: list[list[str]] = [[] for _ in jobs]
    for key in varied(jobs, settings):
        texts = texts_of([each.get(key) for each in settings])
        if key == "algorithm" and _determine([job.algorithm for job in jobs], texts):
            continue  # the names begin with it
        told = seeds if key == SEED else words
        for mine, values, text in zip(told, settings, texts, strict=True):
            if key in values:
                mine.append(f"{shortest(key, known)}={text}")
    for job, mine, seed in zip(jobs, words, seeds, strict=True):
        number = [] if job.overrides else [job.folder]
        cell = "/" in job.folder
        if cell and job.name != job.label and not seed:  # one of the experiment's seeds
            seed = [f"{SEED}={job.seed}"]
        job.label = " ".join([job.label if cell else job.algorithm, *mine, *number])
        job.name = " ".join([job.label, *seed])
    count = Counter(job.name for job in jobs)
    for job in jobs:
        if count[job.name] > 1:
            job.name, job.label = f"{job.name} {job.folder}", f"{job.label} {job.folder}"


def settings_of(cell: Cell) -> dict[str, Any]:
    """Dotted key -> value of a cell's configuration; of a chosen group, the choice."""
    return {**_keys(cell.config), **cell.overrides}


def varied(cells: Sequence[Cell], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that the user gave and that differ between cells, in the order given."""
    given = dict.fromkeys(key for cell in cells for key in cell.overrides)
    return [key for key in given if len({json.dumps(each.get(key)) for each in settings}) > 1]


def shortest(key: str, known: Collection[str]) -> str:
    """The shortest end of a dotted key that no other known key has."""
    parts = key.split(".")
    ends = (".".join(parts[-length:]) for length in range(1, len(parts)))
    return next((end for end in ends if matches(end, known) == [key]), key)


def matches(end: str, known: Collection[str]) -> list[str]:
    """The known keys with this end, in whole parts; if `end` is a known key, only that."""
    return [end] if end in known else sorted(key for key in known if key.endswith(f".{end}"))


def texts_of(values: Sequence[Any]) -> list[str]:
    """Values as on the command line; numbers with few digits if these tell them apart."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    short = [
        f"{value:g}" if isinstance(value, float) else text
        for value, text in zip(values, texts, strict=True)
    ]
    return short if len(set(short)) == len(set(texts)) else texts


def _determine(names: Sequence[str], values: Sequence[str]) -> bool:
    """Whether the name determines the value."""
    return len(set(zip(names, values, strict=True))) == len(set(names))


@cache  # a report asks several times, and reading YAML is slow
def _keys(config: str) -> Mapping[str, Any]:
    return _leaves(OmegaConf.to_container(OmegaConf.create(config)))


def _leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix: node}
    return {
        key: value
        for name, child in node.items()
        for key, value in _leaves(child, f"{prefix}.{name}" if prefix else str(name)).items()
    }
