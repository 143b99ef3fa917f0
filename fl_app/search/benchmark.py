"""``python -m fl_app.search.benchmark FOLDER``: the page of a benchmark from its judged runs.

FOLDER is that of a search with ``search.test_seeds``, of an experiment that crosses cells with
settings, or one with several such searches of different settings. Every number comes from the runs
with fresh seeds. Intervals are 95 % intervals of Student's t distribution over the seeds; methods
are compared seed by seed, since a seed decides who has which data and which devices.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import yaml

from fl_app.core.errors import require
from fl_app.core.extras import require_installed, told_if_missing

if TYPE_CHECKING:
    from fl_app.report.document import Part

PAGE = "benchmark.html"
LEVEL = 0.95
AGES = ("median_staleness", "p90_staleness", "max_staleness")
MAX_TIED = 6  # methods that are named beside the best one


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

    mean = fmean(values)
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Benchmark:
    """Results of methods in settings.

    Attributes:
        scores: accuracy of every run, in [0, 1]; columns method, setting, seed, accuracy, recall
            (mean over the slow labels; missing where there are none), and those of `AGES`, of the
            aggregated updates, in versions.
        missing: runs that have no result, by the names of their folders.
        failed: runs that ended early, by the names of their folders, with the reason. They count
            with the evaluations that they had.
    """

    scores: pd.DataFrame
    missing: Sequence[str]
    failed: Mapping[str, str]

    @property
    def settings(self) -> list[str]:
        """In the order of the configuration."""
        return list(dict.fromkeys(self.scores.setting))

    def table(self, settings: Sequence[str], measure: str = "accuracy") -> pd.DataFrame:
        """Mean of a measure over settings: a row for each seed, a column for each method.

        Methods without a result in each setting and seed are left out.
        """
        chosen = self.scores[self.scores.setting.isin(settings)]
        wide = chosen.pivot_table(index=["setting", "seed"], columns="method", values=measure)
        return wide.dropna(axis=1).groupby("seed").mean()

    def behind_best(
        self, settings: Sequence[str], measure: str = "accuracy"
    ) -> tuple[str, dict[str, Interval]]:
        """The method of the highest mean, and how far the others are ahead of it, best first.

        Raises:
            ValueError: no method has all results, or there is one seed.
        """
        table = self.table(settings, measure)
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

    def ahead_of(self, method: str, setting: str) -> dict[str, Interval]:
        """How far each other method of a setting is ahead of one."""
        table = self.table([setting])
        others = [str(name) for name in table.columns if name != method]
        return {name: interval(list(table[name] - table[method])) for name in others}

    def ranks(self) -> dict[str, Interval]:
        """The mean rank of each method over all settings, with its interval over the seeds."""
        ranked = []
        for setting in self.settings:
            ranks = self.table([setting]).rank(axis=1, ascending=False)
            ranked.append(ranks.assign(setting=setting).reset_index())
        every = pd.concat(ranked).drop(columns="setting").groupby("seed").mean()
        complete = self.table(self.settings).columns
        found = {str(method): interval(list(every[method])) for method in complete}
        return dict(sorted(found.items(), key=lambda item: item[1].mean))

    def groups(self) -> dict[str, list[str]]:
        """Settings that share a part of their name, such as all with ``n10``; and all of them."""
        parts = dict.fromkeys(part for setting in self.settings for part in setting.split("-"))
        own = {part: [s for s in self.settings if part in s.split("-")] for part in parts}
        return {"all settings": self.settings, **own} if len(self.settings) > 1 else own


def read(folder: Path) -> Benchmark:
    """The results of the judged runs in a folder: its own, those of its search, or of searches.

    Raises:
        ValueError: the folder holds no runs of cells in settings.
    """
    rows: list[dict[str, object]] = []
    failed: dict[str, str] = {}
    missing = []
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
        if not re.fullmatch(r"num_versions|updates|seconds", summary["stopped"]):
            failed[path.name] = summary["stopped"]
        labels = _slow_labels(path / "config.yaml")
        recalls = [summary["recall"][label] for label in labels if "recall" in summary]
        recall = fmean(recalls) if recalls and None not in recalls else None
        seed = summary["seed"]
        own = {"method": found[1], "setting": found[2], "seed": seed, "accuracy": accuracy}
        rows.append({**own, "recall": recall, **{age: summary.get(age) for age in AGES}})
    require(bool(rows), "folder", folder, "the test folder of a search over settings", "no results")
    scores = pd.DataFrame(rows)
    scores = scores.astype(dict.fromkeys(("recall", *AGES), float))
    order = _order(paths)
    scores["place"] = [order.index(s) if s in order else len(order) for s in scores.setting]
    scores = scores.sort_values(["place", "method", "seed"]).drop(columns="place")
    return Benchmark(scores.reset_index(drop=True), missing, failed)


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


def advice(found: Benchmark) -> list[list[str]]:
    """What to choose when: a row for each group of settings, derived from the results."""
    rows = []
    for name, settings in found.groups().items():
        best, others = found.behind_best(settings)
        score = interval(list(found.table(settings)[best]))
        tied = [f"{m} {d.text()}" for m, d in others.items() if d.high >= 0]
        clear = [f"{m} {d.text()}" for m, d in others.items() if d.high < 0][:1]
        more = f" and {len(tied) - MAX_TIED} more" if len(tied) > MAX_TIED else ""
        rows.append(
            [
                name,
                best,
                score.text(form="{:.1f}"),
                "; ".join(tied[:MAX_TIED]) + more or "none",
                "; ".join(clear) or "none",
            ]
        )
    return rows


def write_page(found: Benchmark, path: Path, against: Sequence[str] = ()) -> None:
    """Write the page; `against` as of `parts_of`."""
    require_installed("jinja2", "plotly")
    from fl_app.report.document import write_document

    facts = [
        ("methods", str(found.scores.method.nunique())),
        ("settings", str(len(found.settings))),
        ("seeds", ", ".join(map(str, sorted(set(found.scores.seed))))),
        ("measure", "mean accuracy of a run's last ten evaluations"),
    ]
    write_document(path, "Benchmark", facts, parts_of(found, against))


def markdown(parts: Sequence["Part"]) -> str:
    """The tables of a page, for a page in Markdown."""
    lines = []
    for part in parts:
        lines += [f"## {part.title}", "", *part.texts, ""]
        for row in (part.header, ["---"] * len(part.header), *part.rows):
            lines.append("| " + " | ".join(row) + " |")
        lines.append("")
    return "\n".join(lines)


def parts_of(found: Benchmark, against: Sequence[str] = ()) -> list["Part"]:
    """The page: what to choose when, mean ranks, each setting, and what went wrong.

    Args:
        found: the results.
        against: methods with which each other one is compared, besides the best.
    """
    from fl_app.report.charts import layout_of
    from fl_app.report.document import Part
    from fl_app.report.style import INK

    parts = [
        Part(
            "What to choose when",
            [
                "The method of the highest mean accuracy in each group of settings. Behind each "
                "other method: points ahead of the best one, with the 95 % interval of the paired "
                "differences. A method is tied if its interval reaches 0. Intervals are not "
                "corrected for the number of comparisons.",
            ],
            ["settings", "best", "accuracy, %", "tied with it", "the first that is behind"],
            advice(found),
        )
    ]
    ranks = found.ranks()
    if ranks:
        names = list(ranks)[::-1]
        bars = [ranks[name] for name in names]
        error = {
            "type": "data",
            "symmetric": False,
            "array": [each.high - each.mean for each in bars],
            "arrayminus": [each.mean - each.low for each in bars],
        }
        layout = layout_of("mean rank, 1 = best", "", height=80 + 22 * len(names), legend=False)
        figure = {
            "data": [
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [each.mean for each in bars],
                    "y": names,
                    "error_x": error,
                    "marker": {"color": INK, "size": 8},
                }
            ],
            "layout": layout,
        }
        text = f"Mean over {len(found.settings)} settings, of methods with results in each of them."
        rows = [[name, each.text(1, "{:.1f}")] for name, each in ranks.items()]
        parts.append(Part("Mean rank", [text], ["method", "mean rank"], rows, [figure], True))
    parts += [_of_setting(found, setting, against) for setting in found.settings]
    if found.failed or found.missing:
        rows = [[name, reason] for name, reason in found.failed.items()]
        rows += [[name, "no result"] for name in found.missing]
        text = "A run with a reason counts with the evaluations that it had."
        parts.append(Part("Runs that did not reach their end", [text], ["run", "reason"], rows))
    return parts


def _of_setting(found: Benchmark, setting: str, against: Sequence[str]) -> "Part":
    from fl_app.report.document import Part

    table = found.table([setting])
    best, others = found.behind_best([setting])
    rivals = {name: found.ahead_of(name, setting) for name in against if name in table}
    has_recall = not found.scores[found.scores.setting == setting].recall.isna().all()
    recall = found.table([setting], "recall") if has_recall else None
    header = ["method", "accuracy, %", "ahead of the best, points"]
    header += [f"ahead of {name}" for name in rivals]
    header += ["recall of the slow labels, %"] * has_recall
    ages = (
        found.scores[found.scores.setting == setting].groupby("method")[list(AGES)].mean().dropna()
    )
    header += ["ages: median, 90 %, largest"] * (len(ages) > 0)
    rows = []
    for method in [best, *others]:
        row = [method, interval(list(table[method])).text(form="{:.1f}")]
        for ahead in (others, *rivals.values()):
            row.append(ahead[method].text() if method in ahead else "-")
        if recall is not None:
            known = method in recall
            row.append(interval(list(recall[method])).text(form="{:.1f}") if known else "-")
        if len(ages) > 0:
            known = method in ages.index
            row.append(", ".join(f"{age:.0f}" for age in ages.loc[method]) if known else "-")
        rows.append(row)
    return Part(setting, [], header, rows)


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m fl_app.search.benchmark")
    parser.add_argument("folder", type=Path, help="of the search, of searches, or of judged runs")
    parser.add_argument("--markdown", action="store_true", help="print the tables instead")
    help_against = "methods with which each other one is compared, besides the best"
    parser.add_argument("--against", nargs="+", default=[], metavar="METHOD", help=help_against)
    given = parser.parse_args(words)
    folder: Path = given.folder
    try:
        with told_if_missing():
            found = read(folder)
            known = sorted(found.scores.method.unique())
            for name in given.against:
                require(name in known, "--against", name, f"among {', '.join(known)}", "no run")
            if given.markdown:
                print(markdown(parts_of(found, given.against)))
                return
            write_page(found, folder / PAGE, given.against)
    except ValueError as error:
        parser.error(str(error))
    print(f"page: {folder / PAGE}")


if __name__ == "__main__":
    main()
