"""The keys ``search.*`` of the command line."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from omegaconf import OmegaConf

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
        seeds: with each of which every trial runs; its score is the mean over them.
        test_seeds: with each of which the best setting of every cell runs at the end; none of
            `seeds`.
        measure: of a run: the mean of the last ten evaluations, the last or the best one.
        parallel: runs at a time, each in a process, >= 1.
        seed: from which the trials follow.
        folder: for all files; empty = ``outputs/DATE/TIME-search``.
    """

    _group = "search"

    trials: int = bounded(20, COUNT, "nothing would be tried")
    space: str = ""
    updates: int | None = None
    grid: int = bounded(4, count(0), "it counts trials")
    seeds: list[int] = field(default_factory=lambda: [0])
    test_seeds: list[int] = field(default_factory=list)
    measure: str = bounded("last10", MEASURE, "no other measure is known")
    parallel: int = bounded(1, COUNT, "nothing would run")
    seed: int = 0
    folder: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("seeds", "test_seeds"):
            seeds = getattr(self, key)
            good = len({*seeds}) == len(seeds) and (len(seeds) > 0 or key == "test_seeds")
            good = good and all(map(SEED.holds, seeds))
            told = "seeds >= 0 and < 2^63, each once"
            self._require(good, key, told, "runs would be equal, or none")
        fits, told = not {*self.seeds} & {*self.test_seeds}, f"none of search.seeds={self.seeds}"
        self._require(fits, "test_seeds", told, "a setting is not judged on what it was chosen by")


def split(words: Sequence[str]) -> tuple[Settings, list[str]]:
    """The settings of a search, and the words that describe the experiment.

    Raises:
        ValueError: a key is unknown or a value is refused.
    """
    own = [word.removeprefix("search.") for word in words if word.startswith("search.")]
    known = [f"search.{each.name}" for each in fields(Settings)]
    for word in own:
        key, equals, _ = f"search.{word}".partition("=")
        if key not in known or not equals:
            raise ValueError(f"unknown key {key!r}{nearest(key, known)}")
    plain = [word for word in own if not word.startswith("space=")]  # which is no YAML
    with explaining("search"):
        given = OmegaConf.merge(OmegaConf.structured(Settings), OmegaConf.from_dotlist(plain))
        given.space = "".join(word.removeprefix("space=") for word in own if word not in plain)
        settings = OmegaConf.to_object(given)
    assert isinstance(settings, Settings)
    return settings, [word for word in words if not word.startswith("search.")]
