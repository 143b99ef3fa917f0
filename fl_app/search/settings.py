"""The keys ``search.*`` of the command line."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fl_app.cli import nearest
from fl_app.core.errors import require, require_count, require_positive

BEST = "best.yaml"  # in a search's folder: the best setting of each cell
MEASURES = ("last10", "final", "best")  # beginnings of keys of summary.json


@dataclass
class Settings:
    """The keys ``search.*``.

    Attributes:
        trials: of every cell, >= 1.
        space: words as of a command line, such as
            ``algorithm.strategy.server_lr=tag(log,interval(0.01,1))``; empty = those of the
            experiment (``experiment.space``, ``experiment.spaces``).
        updates: client updates of a run; None = the experiment's ``max_updates``.
        seconds: of a run, on its clock; None = the experiment's ``max_seconds``.
        rungs: ascending client updates (or seconds, where these end the runs) after which a trial
            ends whose best score so far is below the median of the complete trials at that rung.
        grid: first trials, with values of a cell's first key evenly spread over its range, >= 0.
        seeds: with each of which every trial runs; its score is the mean over them.
        test_seeds: with each of which the best setting of every cell runs at the end; none of
            `seeds`.
        measure: of a run: the mean of the last ten evaluations, the last or the best one.
        parallel: runs at a time, each in a process, >= 1.
        seed: from which the trials follow.
        folder: for all files; empty = ``outputs/DATE/TIME-search``.
    """

    trials: int = 20
    space: str = ""
    updates: int | None = None
    seconds: float | None = None
    rungs: list[float] = field(default_factory=list)
    grid: int = 4
    seeds: list[int] = field(default_factory=lambda: [0])
    test_seeds: list[int] = field(default_factory=list)
    measure: str = "last10"
    parallel: int = 1
    seed: int = 0
    folder: str = ""

    def check(self) -> None:
        """Refuse values out of their bounds.

        Raises:
            ValueError: naming key, value, bound and consequence.
        """
        require_count("search.trials", self.trials, "nothing would be tried")
        require_count("search.parallel", self.parallel, "nothing would run")
        require(self.grid >= 0, "search.grid", self.grid, "an integer >= 0", "it counts trials")
        require(self.seed >= 0, "search.seed", self.seed, "an integer >= 0", "draws follow from it")
        require(
            self.measure in MEASURES,
            "search.measure",
            self.measure,
            f"one of {', '.join(MEASURES)}",
            "no other measure is known",
        )
        if self.updates is not None:
            require_count("search.updates", self.updates, "nothing would be learned")
        if self.seconds is not None:
            require_positive("search.seconds", self.seconds, "nothing would be learned")
        require(
            self.updates is None or self.seconds is None,
            "search.seconds",
            self.seconds,
            "left out with search.updates",
            "a run has one budget",
        )
        for key in ("seeds", "test_seeds"):
            seeds = getattr(self, key)
            good = len(set(seeds)) == len(seeds) and all(seed >= 0 for seed in seeds)
            good = good and (bool(seeds) or key == "test_seeds")
            bound = "integers >= 0, each once"
            require(good, f"search.{key}", seeds, bound, "runs would be equal, or none")
        both = sorted({*self.seeds} & {*self.test_seeds})
        require(
            not both,
            "search.test_seeds",
            self.test_seeds,
            "seeds that no trial ran with",
            f"search.seeds has {both}, too, and a setting is not judged on what it was chosen by",
        )
        ascending = all(a < b for a, b in zip([0, *self.rungs], self.rungs, strict=False))
        require(ascending, "search.rungs", self.rungs, "above 0 and ascending", "runs only go on")


def split(words: Sequence[str]) -> tuple[Settings, list[str]]:
    """The settings of a search, and the words that describe the experiment.

    Raises:
        ValueError: a key is unknown or a value is refused.
    """
    for word in words:
        key = word.partition("=")[0]
        group = key.partition(".")[0]
        if group != "search" and get_close_matches(group, ["search"], cutoff=0.8):
            raise ValueError(f"unknown key {key!r}; did you mean {key.replace(group, 'search')}?")
    own = [word for word in words if word.startswith("search.")]
    known = [f"search.{each.name}" for each in fields(Settings)]
    for word in own:
        key = word.partition("=")[0]
        if key not in known or "=" not in word:
            raise ValueError(f"unknown key {key!r}{nearest(key, known)}")
    space = [word.partition("=")[2] for word in own if word.startswith("search.space=")]
    plain = [word.removeprefix("search.") for word in own if not word.startswith("search.space=")]
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Settings), OmegaConf.from_dotlist(plain))
        settings = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        told = str(error).splitlines()[0]
        if "is not a ListConfig" in told:
            told = "it must be a list such as [0,1]"
        raise ValueError(f"search.{error.full_key}: {told}") from None
    except YAMLError as error:
        raise ValueError(f"{' '.join(own)}: {' '.join(str(error).split())}") from None
    assert isinstance(settings, Settings)
    settings.space = " ".join(space)
    settings.check()
    return settings, [word for word in words if not word.startswith("search.")]
