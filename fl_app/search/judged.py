"""Results of methods in settings, from judged runs, with intervals.

Every number comes from runs with fresh seeds. Intervals are 95 % intervals of Student's t
distribution over the seeds; methods are compared seed by seed, since a seed decides who has which
data and which devices.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, takewhile
from math import isfinite, nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import pandas as pd
import yaml

from fl_app.core.errors import require
from fl_app.search.settings import BEST

LEVEL = 0.95
AGES = ("median_staleness", "p90_staleness", "max_staleness")
COLUMNS = ("method", "setting", "seed", "accuracy", "seconds", "recall", *AGES, "stopped")
CHOSEN = "chosen"  # a further column, which older files lack
END = "num_versions|updates|seconds"  # why a run ends that was not disturbed
LATE = 1.5  # times the median seconds of a setting's methods: takes more time than the others


class Interval(NamedTuple):
    """A mean with its interval."""

    mean: float
    low: float
    high: float

    def text(self, unit: float = 100, form: str = "{:+.1f}") -> str:
        """Such as "-1.2 [-2.0, -0.4]"."""
        return f"{form} [{form}, {form}]".format(*(unit * value for value in self))


def interval(values: Sequence[float]) -> Interval:
    """The mean of values, one per seed, with its interval.

    Args:
        values: at least two.
    """
    from scipy.stats import t  # part of the extra server

    if not all(map(isfinite, values)):  # such as tau of an order in which all tie
        return Interval(nan, nan, nan)
    mean = fmean(values)
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def p_value(values: Sequence[float]) -> float:
    """Of a t-test that values, one per seed, have the mean 0.

    Args:
        values: at least two.
    """
    from scipy.stats import t  # part of the extra server

    error = stdev(values) / sqrt(len(values))
    if error == 0:
        return float(fmean(values) == 0)
    return float(2 * t.sf(abs(fmean(values)) / error, len(values) - 1))


@dataclass(frozen=True)
class Benchmark:
    """Results of methods in settings.

    Attributes:
        scores: a row for each run; columns method, setting, seed, accuracy in [0, 1], seconds
            (virtual ones, that the run took), recall (mean over the slow labels; missing where
            there are none), those of `AGES`, of the aggregated updates, in versions, stopped
            (why the run ended) and chosen (the best setting as overrides, empty if unknown). A run
            that ended early counts with the evaluations that it had.
        missing: runs that have no result or never began, by the names of their folders.
    """

    scores: pd.DataFrame
    missing: Sequence[str]

    @property
    def failed(self) -> dict[str, str]:
        """Runs that ended early, with the reason."""
        early = self.scores[~self.scores.stopped.str.fullmatch(END)]
        return {
            f"{run.method}@{run.setting}-seed{run.seed}": run.stopped for run in early.itertuples()
        }

    def without(self, names: Collection[str]) -> "Benchmark":
        """The results without some methods and settings."""
        scores = self.scores
        out = scores.method.isin(names) | scores.setting.isin(names)
        missing = [run for run in self.missing if not {*re.split("@|-seed", run)} & {*names}]
        return Benchmark(scores[~out], missing)

    @property
    def settings(self) -> list[str]:
        """In the order of the configuration."""
        return list(dict.fromkeys(self.scores.setting))

    def late(self, settings: Sequence[str]) -> list[str]:
        """Methods that need more than `LATE` times the seconds of the median one in a setting."""
        mean = self.scores[self.scores.setting.isin(settings)].pivot_table(
            index="setting", columns="method", values="seconds"
        )
        limit = LATE * mean.median(axis=1)
        return [str(method) for method in mean.columns if (mean[method] > limit).any()]

    def table(
        self, settings: Sequence[str], measure: str = "accuracy", without: Collection[str] = ()
    ) -> pd.DataFrame:
        """Mean of a measure over settings: a row for each seed, a column for each method.

        Methods without a result in each setting and seed are left out, and those of ``without``;
        so are seeds that one of the settings lacks.
        """
        chosen = self.scores[self.scores.setting.isin(settings) & ~self.scores.method.isin(without)]
        wide = chosen.pivot_table(index=["setting", "seed"], columns="method", values=measure)
        by_seed = wide.dropna(axis=1).groupby("seed")
        return by_seed.mean()[by_seed.size() == len(settings)]

    def behind_best(
        self, settings: Sequence[str], without: Collection[str] = ()
    ) -> tuple[str, dict[str, Interval]]:
        """The method of the highest accuracy, and how far others are ahead of it, best first.

        Args:
            settings: over which the mean is taken.
            without: methods that are left out.

        Raises:
            ValueError: no method has all results, or there is one seed.
        """
        table = self.table(settings, without=without)
        require(
            len(table) > 1 and len(table.columns) > 0,
            "folder",
            ", ".join(settings),
            "settings in which a method has a result with each of several seeds",
            "there is nothing to compare, or no interval; some runs may still go on",
        )
        order = table.mean().sort_values(ascending=False).index
        best = str(order[0])
        return best, {str(m): interval(list(table[m] - table[best])) for m in order[1:]}

    def not_separated(self, settings: Sequence[str], without: Collection[str] = ()) -> int:
        """Number of methods that Holm's correction does not separate from the best one.

        Each is compared with the best one in a paired t-test over the seeds, at `LEVEL` for all
        comparisons together.
        """
        table = self.table(settings, without=without)
        best, others = self.behind_best(settings, without)
        values = sorted(p_value(list(table[name] - table[best])) for name in others)
        limits = [(1 - LEVEL) / (len(values) - place) for place in range(len(values))]
        separated = takewhile(lambda pair: pair[0] <= pair[1], zip(values, limits, strict=True))
        return len(values) - len([*separated])

    def ahead_of(self, method: str, setting: str) -> dict[str, Interval]:
        """How far each other method of a setting is ahead of one."""
        table = self.table([setting])
        others = [str(name) for name in table.columns if name != method]
        return {name: interval(list(table[name] - table[method])) for name in others}

    def ranks(self, without: Collection[str] = ()) -> dict[str, Interval]:
        """The mean rank of each method over all settings, with its interval over the seeds.

        Args:
            without: methods that are left out.
        """
        complete = self.table(self.settings, without=without)
        ranked = []
        for setting in self.settings:
            ranks = self.table([setting], without=without)[complete.columns]
            ranked.append(ranks.loc[complete.index].rank(axis=1, ascending=False))
        every = pd.concat(ranked).groupby("seed").mean()
        found = {str(method): interval(list(every[method])) for method in complete}
        return dict(sorted(found.items(), key=lambda item: item[1].mean))

    def agreement(self, setting: str, other: "Benchmark", their_setting: str) -> Interval:
        """Kendall's tau-b between the orders of methods in two settings.

        It is 1 where both settings have the same order, -1 where one order is the reverse of the
        other, and near 0 where neither says anything of the other. It is computed for each seed,
        from the methods with results in both settings.

        Args:
            setting: of these results.
            other: results of another benchmark, or these.
            their_setting: of the other results.

        Raises:
            ValueError: they share less than three methods or less than two seeds.
        """
        from scipy.stats import kendalltau  # part of the extra server

        mine, theirs = self.table([setting]), other.table([their_setting])
        methods = mine.columns.intersection(theirs.columns)
        seeds = mine.index.intersection(theirs.index)
        require(
            len(methods) >= 3 and len(seeds) >= 2,
            "--order-of",
            f"{len(methods)} methods and {len(seeds)} seeds that it shares with {setting}",
            "at least three methods and two seeds",
            "there is no order to compare, or no interval",
        )
        return interval(
            [
                float(kendalltau(mine.loc[seed, methods], theirs.loc[seed, methods]).statistic)
                for seed in seeds
            ]
        )

    def agreement_of_seeds(self, setting: str, methods: Collection[str]) -> float:
        """Mean of Kendall's tau-b between the orders of some methods with any two seeds.

        It says how far orders agree that differ by chance alone.
        """
        from scipy.stats import kendalltau  # part of the extra server

        table = self.table([setting])
        table = table[[name for name in table.columns if name in methods]]
        pairs = combinations(table.index, 2)
        return fmean(float(kendalltau(table.loc[a], table.loc[b]).statistic) for a, b in pairs)

    def groups(self) -> dict[str, list[str]]:
        """Settings that share a part of their name, such as all with ``n10``; and all of them."""
        parts = dict.fromkeys(part for setting in self.settings for part in setting.split("-"))
        own = {part: [s for s in self.settings if part in s.split("-")] for part in parts}
        return {"all settings": self.settings, **own} if len(self.settings) > 1 else own


def read(folder: Path) -> Benchmark:
    """The judged runs in a folder, in its ``test/``, and in the ``test/`` of its folders.

    Args:
        folder: or a file that `write` has written.

    Raises:
        ValueError: there are no such runs, or several of one method, setting and seed.
    """
    scores, missing = (_from_csv(folder), []) if folder.is_file() else _from_runs(folder)
    twice = scores[scores.duplicated(["method", "setting", "seed"])]
    told = [f"{run.method}@{run.setting}, seed {run.seed}" for run in twice.itertuples()]
    require(not told, "folder", folder, f"one with one run of {', '.join(told)}", "it has several")
    return Benchmark(scores, [*missing, *_never_begun(scores, missing)])


def _from_runs(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """The results in a folder, and the names of the runs that have none."""
    rows: list[dict[str, object]] = []
    missing = []
    best_of = lru_cache(_best)
    paths = [p for place in ("*@*", "test/*@*", "*/test/*@*") for p in sorted(folder.glob(place))]
    for path in paths:
        found = re.fullmatch(r"(.+)@(.+?)(?:-seed(\d+))?", path.name)
        if found is None or not path.is_dir():
            continue
        file = path / "summary.json"
        summary = json.loads(file.read_text()) if file.exists() else {}
        accuracy = summary.get("last10_accuracy")
        if accuracy is None:
            missing.append(path.name)
            continue
        labels = _slow_labels(path / "config.yaml")
        recalls = [summary["recall"][label] for label in labels if "recall" in summary]
        recall = fmean(recalls) if recalls and None not in recalls else None
        seed = summary["seed"]
        own = {"method": found[1], "setting": found[2], "seed": seed, "accuracy": accuracy}
        own |= {"seconds": summary["virtual_seconds"], "recall": recall}
        own |= {age: summary.get(age) for age in AGES}
        chosen = " ".join(best_of(path.parent.parent).get(f"{found[1]}@{found[2]}") or [])
        rows.append({**own, "stopped": summary["stopped"], CHOSEN: chosen})
    plain = any(folder.glob("test/*/summary.json")) and not paths
    told = (
        "its search has no settings: test/report.html compares its runs" if plain else "no results"
    )
    require(bool(rows), "folder", folder, "the test folder of a search over settings", told)
    scores = pd.DataFrame(rows)
    scores = scores.astype(dict.fromkeys(("recall", *AGES), float))
    order = _order(paths)
    scores["place"] = [order.index(s) if s in order else len(order) for s in scores.setting]
    scores = scores.sort_values(["place", "method", "seed"]).drop(columns="place")
    return scores.reset_index(drop=True), missing


def _never_begun(scores: pd.DataFrame, missing: Sequence[str]) -> list[str]:
    """Runs that other methods of a setting have, by the names that their folders would have."""
    lacking = []
    for setting, ran in scores.groupby("setting", sort=False):
        for method in scores.method.unique():
            lacks = sorted({*ran.seed} - {*ran.seed[ran.method == method]})
            lacking += [f"{method}@{setting}-seed{seed}" for seed in lacks]
    return [name for name in lacking if not {name, name.rpartition("-seed")[0]} & {*missing}]


def write(found: Benchmark, path: Path) -> None:
    """Write the results as CSV, a line for each run, numbers with ten digits."""
    found.scores.to_csv(path, index=False, float_format="%.10g")


def _from_csv(path: Path) -> pd.DataFrame:
    try:
        scores = pd.read_csv(path, converters={"stopped": str, CHOSEN: str})
    except pd.errors.EmptyDataError:
        scores = pd.DataFrame()
    columns = [name for name in COLUMNS if name not in scores]
    require(not columns, "folder", path, "a file of --csv", f"it has no {', '.join(columns)}")
    require(len(scores) > 0, "folder", path, "a file of --csv", "it has no run")
    scores[CHOSEN] = scores[CHOSEN].astype(object).fillna("") if CHOSEN in scores else ""
    return scores.astype(dict.fromkeys(("recall", *AGES), float))


def _best(folder: Path) -> dict[str, list[str]]:
    """The best settings that the search in a folder has found, by cell; empty if there is none."""
    path = folder / BEST
    return dict(yaml.safe_load(path.read_text())["cells"]) if path.exists() else {}


def _slow_labels(config: Path) -> list[int]:
    """The labels of the slow clients; empty where the partition has none."""
    text = config.read_text() if config.exists() else ""
    if "SlowLabels" not in text:
        return []
    return list(yaml.safe_load(text)["partition"]["labels"])


def _order(paths: Sequence[Path]) -> list[str]:
    """The settings in the order of the configuration; empty if that is not known."""
    for path in paths:
        if (path / "config.yaml").exists():
            config = yaml.safe_load((path / "config.yaml").read_text())
            return list(config["experiment"]["settings"])
    return []
