"""The keys ``search.*`` of the command line."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import yaml

from fl_app.cli import nearest
from fl_app.core.errors import explaining
from fl_app.core.hyper import COUNT, SEED, Bound, Checked, bounded, count

BEST = "best.yaml"  # in a search's folder: the best setting of each cell
MEASURES = ("last10", "final", "best")  # beginnings of keys of summary.json
MEASURE = Bound(f"one of {', '.join(MEASURES)}", MEASURES.__contains__)


@dataclass
class Settings(Checked):
    """The keys ``search.*``.

    Attributes:
        trials: of every cell, >= 1.
        space: words as of a command line, such as
            ``algorithm.strategy.server_lr=tag(log,interval(0.01,1))``; empty = those of the
            experiment (``experiment.space``, ``experiment.spaces``).
        updates: client updates of a run; None = the experiment's ``max_updates``, else its
            ``max_seconds``.
        grid: first trials, with values of a cell's first key evenly spread over its range, >= 0.
        seeds: every trial runs with each of them; its score is the mean.
        test_seeds: the best setting of every cell runs with each of them at the end; none of
            `seeds`.
        measure: of a run: the mean of the last ten evaluations, the last or the best one.
        parallel: runs at a time, each in a process, >= 1.
        seed: of the sampler that draws the trials.
        folder: for all files; empty = ``outputs/DATE/TIME-search``.
    """

    _group = "search"

    trials: int = bounded(20, COUNT, "nothing would be tried")
    space: str = ""
    updates: int | None = bounded(None, COUNT, "nothing would be learned")
    grid: int = bounded(4, count(0), "it counts trials")
    seeds: list[int] = field(default_factory=lambda: [0])
    test_seeds: list[int] = field(default_factory=list)
    measure: str = bounded("last10", MEASURE, "no other measure is known")
    parallel: int = bounded(1, COUNT, "nothing would run")
    seed: int = bounded(0, SEED, "trials are drawn from it")
    folder: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("seeds", "test_seeds"):
            seeds = getattr(self, key)
            valid = isinstance(seeds, list) and all(map(SEED.holds, seeds))
            valid = valid and len({*seeds}) == len(seeds) and (seeds or key == "test_seeds")
            bound = "a list of seeds >= 0 and < 2^63, each once"
            self._require(bool(valid), key, bound, "runs would be equal, or none")
        fits, bound = not {*self.seeds} & {*self.test_seeds}, f"none of search.seeds={self.seeds}"
        self._require(fits, "test_seeds", bound, "a setting is not judged on what it was chosen by")


def split(words: Sequence[str]) -> tuple[Settings, list[str]]:
    """The settings of a search, and the words that describe the experiment.

    Raises:
        ValueError: a key is unknown or a value is refused.
    """
    keys, values = [f"search.{item.name}" for item in fields(Settings)], dict[str, Any]()
    for word in (word for word in words if word.startswith("search.")):
        key, equals, value = word.partition("=")
        if key not in keys or not equals:
            raise ValueError(f"unknown key {key!r}{nearest(key, keys)}")
        name = key.removeprefix("search.")
        if name == "space":  # several are one
            value = f"{values.get(name, '')} {value}".strip()
        with explaining(key):
            values[name] = value if name in ("space", "folder") else yaml.safe_load(value)
    return Settings(**values), [word for word in words if not word.startswith("search.")]
