"""``python -m lab.benchmark FOLDER``: the tables of a benchmark from its judged runs.

FOLDER is that of a search with ``search.test_seeds``, of an experiment that crosses cells with
settings, or one with several such searches of different settings. It may also be the CSV file that
``--csv`` writes.

Every number comes from runs with fresh seeds. Intervals are 95 % intervals of Student's t
distribution over the seeds; methods are compared seed by seed, since a seed decides who has which
data and which devices.
"""

import argparse
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pandas as pd
import yaml

from fl_app.benchmark.page import Scores, interval, rank_section, section
from fl_app.core.errors import require
from fl_app.search.settings import BEST

AGES = ("median_staleness", "p90_staleness", "max_staleness")
COLUMNS = ("method", "setting", "seed", "accuracy", "seconds", "recall", *AGES, "stopped", "chosen")
LATE = 1.5  # times the median seconds of a setting's methods: takes more time than the others
USUAL = "num_versions|updates|seconds|"  # why a run ends that was not disturbed


@dataclass(frozen=True)
class Benchmark(Scores):
    """Results of methods in settings.

    Attributes:
        scores: as of `Scores`, with the columns accuracy, seconds (virtual ones, that the run
            took), recall (mean over the slow labels; missing where
            there are none), those of `AGES`, of the aggregated updates, in versions, stopped
            (why the run ended) and chosen (the best setting as overrides, empty if unknown). A run
            that ended early counts with the evaluations that it had.
    """

    @property
    def missing(self) -> list[str]:
        """Runs without a result that other methods of a setting have, by their folders' names."""
        wide = self.scores.set_index(["setting", "seed", "method"]).accuracy.unstack()
        lacks = wide.isna().stack()
        return [f"{method}@{setting}-seed{seed}" for setting, seed, method in lacks.index[lacks]]

    def without(self, names: Collection[str]) -> "Benchmark":
        """The results without some methods and settings."""
        out = self.scores.method.isin(names) | self.scores.setting.isin(names)
        return Benchmark(self.scores[~out])

    def late(self, settings: Sequence[str]) -> list[str]:
        """Methods that need more than `LATE` times the seconds of the median one in a setting."""
        mean = self.scores[self.scores.setting.isin(settings)].pivot_table(
            index="setting", columns="method", values="seconds"
        )
        limit = LATE * mean.median(axis=1)
        return [str(method) for method in mean.columns if (mean[method] > limit).any()]

    def best(self, settings: Sequence[str]) -> str:
        """The method of the highest mean accuracy over some settings.

        Raises:
            ValueError: no method has all results, or there is one seed.
        """
        table = self.table(settings)
        require(
            len(table) > 1 and len(table.columns) > 0,
            "folder",
            ", ".join(settings),
            "settings in which a method has a result with each of several seeds",
            "there is nothing to compare, or no interval; some runs may still go on",
        )
        return str(table.mean().sort_values(ascending=False).index[0])

    def groups(self) -> dict[str, list[str]]:
        """Settings that share a part of their name, such as all with ``n10``; and all of them."""
        parts = dict.fromkeys(part for setting in self.settings for part in setting.split("-"))
        own = {part: [s for s in self.settings if part in s.split("-")] for part in parts}
        return {"all settings": self.settings, **own} if len(self.settings) > 1 else own


def read(folder: Path) -> Benchmark:
    """The judged runs in a folder, in its ``test/``, and in the ``test/`` of its folders.

    Args:
        folder: or a file of ``--csv``.

    Raises:
        ValueError: there are no such runs, or several of one method, setting and seed.
    """
    if folder.is_file():
        scores = pd.read_csv(folder)
    else:
        places = ("*@*", "test/*@*", "*/test/*@*")
        paths = [path for place in places for path in sorted(folder.glob(place)) if path.is_dir()]
        scores = pd.DataFrame([_row(path) for path in paths], columns=[*COLUMNS, "place"])
        scores = scores.sort_values(["place", "method", "seed"], ignore_index=True)
    told = "the test folder of a search over settings, or a file of --csv"
    good = {*COLUMNS} <= {*scores} and scores.accuracy.notna().any()
    require(good, "folder", folder, told, "it has no results")
    twice = scores[scores.duplicated(["method", "setting", "seed"])]
    names = [f"{run.method}@{run.setting}, seed {run.seed}" for run in twice.itertuples()]
    told = f"one with one run of {', '.join(names)}"
    require(not names, "folder", folder, told, "it has several")
    texts = {name: scores[name].astype(object).fillna("") for name in ("stopped", "chosen")}
    floats = dict.fromkeys(("accuracy", "seconds", "recall", *AGES), float)
    return Benchmark(scores[[*COLUMNS]].assign(**texts).astype(floats))


def _row(run: Path) -> dict[str, object]:
    """The result of a run, or its name alone where it has none."""
    cell, _, seed = run.name.rpartition("-seed")
    config = yaml.safe_load(path.read_text()) if (path := run / "config.yaml").exists() else {}
    method, _, setting = (cell or run.name).partition("@")
    order = [*config.get("experiment", {}).get("settings", {})]
    row = {
        "method": method,
        "setting": setting,
        "seed": int(seed) if cell else config.get("seed", 0),
        "stopped": "",
        "chosen": "",
        "place": order.index(setting) if setting in order else len(order),
    }
    summary = json.loads(path.read_text()) if (path := run / "summary.json").exists() else {}
    if summary.get("last10_accuracy") is None:
        return row
    labels = config["partition"].get("labels", []) if "SlowLabels" in str(config) else []
    recalls = [summary["recall"][label] for label in labels if "recall" in summary]
    best = run.parent.parent / BEST
    chosen = yaml.safe_load(best.read_text())["cells"] if best.exists() else {}
    return row | {
        "accuracy": summary["last10_accuracy"],
        "seconds": summary["virtual_seconds"],
        "recall": fmean(recalls) if recalls and None not in recalls else None,
        **{age: summary.get(age) for age in AGES},
        "stopped": summary["stopped"],
        "chosen": " ".join(chosen.get(cell) or []),
    }


def page(found: Benchmark, against: Sequence[str] = ()) -> str:
    """What to choose when, mean ranks, each setting, and what went wrong.

    Args:
        found: the results.
        against: methods with which each other one is compared, besides the best.
    """
    parts = [_advice(found), _ranks(found)]
    parts += [_of_setting(found, setting, against) for setting in found.settings]
    early = found.scores[~found.scores.stopped.str.fullmatch(USUAL)].itertuples()
    rows = [[f"{run.method}@{run.setting}-seed{run.seed}", run.stopped] for run in early]
    rows += [[name, "no result"] for name in found.missing]
    text = (
        "A run with a reason counts with the evaluations that it had. A method that lacks a result "
        "in a setting is left out of the setting's comparison and of means over it."
    )
    last = section("Runs that did not reach their end", [text], ["run", "reason"], rows)
    return "".join([*parts, last]).removesuffix("\n")


def _advice(found: Benchmark) -> str:
    """A row for each group of settings, and one without methods that need more time."""
    rows = []
    for name, settings in found.groups().items():
        rows.append(_choice(found, name, settings))
        late = found.late(settings)
        if late and not (quick := found.without(late)).table(settings).empty:
            rows.append(_choice(quick, f"{name}, in time", settings))
    texts = [
        "The method of the highest mean accuracy in each group of settings. Behind each "
        "other method: points ahead of the best one, with the 95 % interval of the paired "
        "differences. A method is tied if its interval reaches 0. Intervals are not "
        "corrected for the number of comparisons.",
        "All have the same updates, unless a cell ends at a time of its own. They take "
        "different times: some wait for slow clients. "
        f'"In time" leaves out methods that take more than {LATE} times the virtual '
        "seconds of the median method in one of the settings.",
    ]
    header = ["settings", "best", "accuracy, %", "tied with it", "best of those behind it"]
    return section("What to choose when", texts, header, rows)


def _choice(found: Benchmark, name: str, settings: Sequence[str]) -> list[str]:
    best = found.best(settings)
    others = found.ahead_of(best, settings)
    score = interval(list(found.table(settings)[best]))
    tied = [f"{m} {d.text()}" for m, d in others.items() if d.high >= 0]
    clear = [f"{m} {d.text()}" for m, d in others.items() if d.high < 0][:1]
    return [
        name,
        best,
        score.text(form="{:.1f}"),
        "; ".join(tied) or "none",
        "; ".join(clear) or "none",
    ]


def _ranks(found: Benchmark) -> str:
    late = found.late(found.settings)
    text = (
        f"Mean over {len(found.settings)} settings, of methods with results in each of them; "
        "and the accuracy in each setting, %. *: takes more time than the others."
    )
    return rank_section(found, "Mean rank", [text], {name: f"{name} *" for name in late})


def _of_setting(found: Benchmark, setting: str, against: Sequence[str]) -> str:
    table = found.table([setting])
    recalls = 100 * found.table([setting], "recall").agg(["mean", "min", "max"])
    best = found.best([setting])
    runs = found.scores[found.scores.setting == setting].groupby("method")
    seconds = found.table([setting], "seconds").mean()
    # The largest age of all seeds, and means of the others.
    ages = runs[list(AGES)].mean().assign(max_staleness=runs["max_staleness"].max()).dropna()
    chosen = {name: _short(words) for name, words in runs["chosen"].first().items() if words}
    names = [best, *found.ahead_of(best, [setting])]
    columns = {
        "accuracy, %": {n: interval(list(table[n])).text(form="{:.1f}") for n in names},
        "seconds": {n: f"{seconds[n]:.0f}" for n in names},
    }
    for title, rival in [("the best, points", best), *((n, n) for n in against if n in table)]:
        ahead = found.ahead_of(rival, [setting])
        columns[f"ahead of {title}"] = {n: each.text() for n, each in ahead.items()}
    # With the range: an interval could leave [0, 100].
    columns["recall of the slow labels, % (lowest to highest seed)"] = {
        n: "{:.1f} ({:.1f} to {:.1f})".format(*recalls[n]) for n in recalls
    }
    columns["ages: median, 90 %, largest"] = {
        n: ", ".join(f"{age:.0f}" for age in ages.loc[n]) for n in ages.index
    }
    columns["searched values"] = chosen
    shown = {title: texts for title, texts in columns.items() if texts}
    rows = [[name, *(texts.get(name, "-") for texts in shown.values())] for name in names]
    return section(setting, [], ["method", *shown], rows)


def _short(words: str) -> str:
    """Overrides without the groups of their keys, and with numbers of three digits."""
    return " ".join(
        re.sub(r"\d+\.\d+(?:e-?\d+)?$", lambda number: f"{float(number[0]):.3g}", word)
        for word in re.sub(r"\S+\.(?=\w+=)", "", words).split()
    )


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m lab.benchmark")
    help_folder = "of the search, of searches, or of judged runs; or a file of --csv"
    parser.add_argument("folder", type=Path, help=help_folder)
    help_csv = "write the results of all judged runs instead, from which the tables can be rebuilt"
    parser.add_argument("--csv", type=Path, metavar="FILE", help=help_csv)
    help_against = "methods with which each other one is compared, besides the best"
    parser.add_argument("--against", nargs="+", default=[], metavar="METHOD", help=help_against)
    help_without = "methods and settings that are left out"
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help=help_without)
    given = parser.parse_args(words)
    try:
        found = read(given.folder)
        for key, columns in (("without", ["method", "setting"]), ("against", ["method"])):
            known = {*found.scores[columns].to_numpy().ravel()}
            for name in getattr(given, key):
                told = f"among {', '.join(sorted(known))}"
                require(name in known, f"--{key}", name, told, "it has no run")
        found = found.without(given.without)
        if given.csv:
            ended = found.scores.dropna(subset="accuracy")
            ended.to_csv(given.csv, index=False, float_format="%.10g")
            return
        print(page(found, given.against))
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
