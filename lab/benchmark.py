"""``python -m lab.benchmark FOLDER``: the tables of a benchmark from its test runs.

FOLDER is that of a search with ``search.test_seeds``, of an experiment that crosses cells with
settings, or one with several such searches of different settings. It may also be the CSV file that
``--csv`` writes.

Every number comes from runs with fresh seeds. Intervals are 95 % intervals of Student's t
distribution over the seeds; methods are compared seed by seed, since a seed decides who has which
data and which devices.
"""

import argparse
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import yaml

from fl_app.benchmark.page import Scores, interval, rank_section, section
from fl_app.core.errors import require
from fl_app.record.folder import read_summary
from fl_app.search.settings import BEST

AGES = ("median_staleness", "p90_staleness", "max_staleness")
COLUMNS = ("method", "setting", "seed", "accuracy", "seconds", "recall", *AGES, "stopped", "chosen")
LATE = 1.5  # a method is late above so many times the median seconds of a setting
UNDISTURBED = "num_versions|updates|seconds|"  # values of `stopped` of a complete run; "" = unknown


class Benchmark(Scores):
    """Results of methods in settings.

    Attributes:
        scores: as of `Scores`, with the columns accuracy, seconds (virtual, of the run), recall
            (mean over the slow labels; missing if there are none), those of `AGES` (of the
            aggregated updates, in versions), stopped (why the run ended) and chosen (the best
            setting as overrides, empty if unknown). A run that ended early counts with its
            evaluations so far.
    """

    @property
    def missing(self) -> list[str]:
        """Names of the folders of runs without a result, where other methods have one."""
        wide = self.scores.set_index(["setting", "seed", "method"]).accuracy.unstack()
        lacks = wide.isna().stack()
        return [f"{method}@{setting}-seed{seed}" for setting, seed, method in lacks.index[lacks]]

    def without(self, methods: Collection[str]) -> "Benchmark":
        """The results without some methods."""
        return Benchmark(self.scores[~self.scores.method.isin(methods)])

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
        fits, names = len(table) > 1 and len(table.columns) > 0, ", ".join(settings)
        bound = "settings in which a method has a result with each of several seeds"
        effect = "there is nothing to compare, or no interval; some runs may still go on"
        require(fits, "folder", names, bound, effect)
        return str(table.mean().sort_values(ascending=False).index[0])

    def groups(self) -> dict[str, list[str]]:
        """Settings that share a part of their name, such as all with ``n10``; and all of them."""
        parts = dict.fromkeys(part for setting in self.settings for part in setting.split("-"))
        groups = {part: [s for s in self.settings if part in s.split("-")] for part in parts}
        return {"all settings": self.settings, **groups} if len(self.settings) > 1 else groups


def read(folder: Path) -> Benchmark:
    """The test runs in a folder, in its ``test/``, and in the ``test/`` of its folders.

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
    bound = "the test folder of a search over settings, or a file of --csv"
    valid = {*COLUMNS} <= {*scores} and scores.accuracy.notna().any()
    require(valid, "folder", folder, bound, "it has no results")
    duplicates = scores[scores.duplicated(["method", "setting", "seed"])]
    names = [f"{run.method}@{run.setting}, seed {run.seed}" for run in duplicates.itertuples()]
    bound = f"one with one run of {', '.join(names)}"
    require(not names, "folder", folder, bound, "it has several")
    texts = {name: scores[name].astype(object).fillna("") for name in ("stopped", "chosen")}
    floats = dict.fromkeys(("accuracy", "seconds", "recall", *AGES), float)
    return Benchmark(scores[[*COLUMNS]].assign(**texts).astype(floats))


def _row(run: Path) -> dict[str, object]:
    """The result of a run, or only its name if it has none."""
    cell, _, seed = run.name.rpartition("-seed")
    config = yaml.safe_load(path.read_text()) if (path := run / "config.yaml").exists() else {}
    method, _, setting = (cell or run.name).partition("@")
    order = [*config.get("experiment", {}).get("settings", {})]
    row = {
        "method": method,
        "setting": setting,
        "seed": int(seed) if cell else config.get("seed", 0),
        "place": order.index(setting) if setting in order else len(order),
    }
    summary = read_summary(run)
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


def page(results: Benchmark, against: Sequence[str] = ()) -> str:
    """The page: what to choose when, mean ranks, each setting, and incomplete runs.

    Args:
        results: to show.
        against: methods with which each other one is compared, besides the best.
    """
    parts = [_advice(results), _ranks(results)]
    parts += [_of_setting(results, setting, against) for setting in results.settings]
    unfinished = results.scores[~results.scores.stopped.str.fullmatch(UNDISTURBED)].itertuples()
    rows = [[f"{run.method}@{run.setting}-seed{run.seed}", run.stopped] for run in unfinished]
    rows += [[name, "no result"] for name in results.missing]
    text = (
        "A run with a reason counts with the evaluations that it had. A method that lacks a result "
        "in a setting is left out of the setting's comparison and of means over it."
    )
    last = section("Runs that did not reach their end", [text], ["run", "reason"], rows)
    return "".join([*parts, last]).removesuffix("\n")


def _advice(results: Benchmark) -> str:
    """A row for each group of settings, and one without methods that need more time."""
    rows = []
    for name, settings in results.groups().items():
        rows.append(_choice(results, name, settings))
        late = results.late(settings)
        if late and not (in_time := results.without(late)).table(settings).empty:
            rows.append(_choice(in_time, f"{name}, in time", settings))
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


def _choice(results: Benchmark, name: str, settings: Sequence[str]) -> list[str]:
    best = results.best(settings)
    leads = results.ahead_of(best, settings)
    score = interval(list(results.table(settings)[best]))
    ties = [f"{m} {d.text()}" for m, d in leads.items() if d.high >= 0]
    behind = [f"{m} {d.text()}" for m, d in leads.items() if d.high < 0][:1]
    return [
        name,
        best,
        score.text(form="{:.1f}"),
        "; ".join(ties) or "none",
        "; ".join(behind) or "none",
    ]


def _ranks(results: Benchmark) -> str:
    late = results.late(results.settings)
    taus = results.ranks_by_seed().T.corr(method="kendall").to_numpy()
    taus = taus[np.triu_indices(len(taus), 1)]
    text = (
        f"Mean over {len(results.settings)} settings, of methods with results in each of them; "
        "and the accuracy in each setting, %. *: takes more time than the others. Kendall's tau of "
        f"the ranks of two seeds: {taus.mean():.2f} on average, minimum {taus.min():.2f}."
    )
    return rank_section(results, "Mean rank", [text], {name: f"{name} *" for name in late})


def _of_setting(results: Benchmark, setting: str, against: Sequence[str]) -> str:
    table = results.table([setting])
    recalls = 100 * results.table([setting], "recall").agg(["mean", "min", "max"])
    best = results.best([setting])
    runs = results.scores[results.scores.setting == setting].groupby("method")
    seconds = results.table([setting], "seconds").mean()
    # The largest age of all seeds, and means of the others.
    ages = runs[list(AGES)].mean().assign(max_staleness=runs["max_staleness"].max()).dropna()
    chosen = {name: _short(words) for name, words in runs["chosen"].first().items() if words}
    names = [best, *results.ahead_of(best, [setting])]
    columns = {
        "accuracy, %": {n: interval(list(table[n])).text(form="{:.1f}") for n in names},
        "seconds": {n: f"{seconds[n]:.0f}" for n in names},
    }
    for title, rival in [("the best, points", best), *((n, n) for n in against if n in table)]:
        ahead = results.ahead_of(rival, [setting])
        columns[f"ahead of {title}"] = {n: lead.text() for n, lead in ahead.items()}
    # With the range: an interval could leave [0, 100].
    columns["recall of the slow labels, % (lowest to highest seed)"] = {
        n: "{:.1f} ({:.1f} to {:.1f})".format(*recalls[n]) for n in recalls
    }
    columns["ages: median, 90 %, largest"] = {
        n: ", ".join(f"{age:.0f}" for age in ages.loc[n]) for n in ages.index
    }
    columns["searched values"] = chosen
    visible = {title: texts for title, texts in columns.items() if texts}
    rows = [[name, *(texts.get(name, "-") for texts in visible.values())] for name in names]
    return section(setting, [], ["method", *visible], rows)


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
    args = parser.parse_args(words)
    try:
        results = read(args.folder)
        names = {*results.scores.method}
        for name in args.against:
            bound = f"among {', '.join(sorted(names))}"
            require(name in names, "--against", name, bound, "it has no run")
        if args.csv:
            complete = results.scores.dropna(subset="accuracy")
            complete.to_csv(args.csv, index=False, float_format="%.10g")
            return
        print(page(results, args.against))
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
