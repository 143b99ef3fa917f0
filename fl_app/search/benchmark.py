"""``python -m fl_app.search.benchmark FOLDER``: the tables of a benchmark from its judged runs.

FOLDER is that of a search with ``search.test_seeds``, of an experiment that crosses cells with
settings, or one with several such searches of different settings. It may also be the CSV file that
``--csv`` writes. `fl_app.search.judged` says where every number comes from.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fl_app.core.errors import require
from fl_app.search.judged import AGES, LATE, Benchmark, interval, read

MAX_TIED = 6  # methods that are named beside the best one
USUAL = "num_versions|updates|seconds|"  # why a run ends that was not disturbed


class Part(NamedTuple):
    """A table below its title and texts."""

    title: str
    texts: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """For a page in Markdown."""
        lines = [f"## {self.title}", "", *self.texts, ""]
        lines += ["| " + " | ".join(self.header) + " |", "|---" * len(self.header) + "|"]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows), ""])


def parts_of(found: Benchmark, against: Sequence[str] = ()) -> list[Part]:
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
    text = "A run with a reason counts with the evaluations that it had."
    parts.append(Part("Runs that did not reach their end", [text], ["run", "reason"], rows))
    return [part for part in parts if part.rows]


def _advice(found: Benchmark) -> Part:
    """A row for each group of settings, and one without methods that need more time."""
    rows = []
    for name, settings in found.groups().items():
        rows.append(_choice(found, name, settings, []))
        late = found.late(settings)
        if late and not found.table(settings, without=late).empty:
            rows.append(_choice(found, f"{name}, in time", settings, late))
    lacking = (
        f"{len(found.missing)} runs have no result (the last table). A method that lacks one in a "
        "setting is left out of the setting's comparison and of means over it."
    )
    texts = [
        *([lacking] if found.missing else []),
        "The method of the highest mean accuracy in each group of settings. Behind each "
        "other method: points ahead of the best one, with the 95 % interval of the paired "
        "differences. A method is tied if its interval reaches 0. Intervals are not "
        "corrected for the number of comparisons. The last column is: so many methods are "
        "not separated from the best one at 95 % for all comparisons together (Holm's "
        "correction of paired t-tests), of so many.",
        "All have the same updates, unless a cell ends at a time of its own. They take "
        "different times: some wait for slow clients. "
        f'"In time" leaves out methods that take more than {LATE} times the virtual '
        "seconds of the median method in one of the settings.",
    ]
    header = ["settings", "best", "accuracy, %", "tied with it", "best of those behind it"]
    return Part("What to choose when", texts, [*header, "not separated (Holm)"], rows)


def _choice(
    found: Benchmark, name: str, settings: Sequence[str], without: Sequence[str]
) -> list[str]:
    best = found.best(settings, without)
    others = found.ahead_of(best, settings, without)
    score = interval(list(found.table(settings, without=without)[best]))
    tied = [f"{m} {d.text()}" for m, d in others.items() if d.high >= 0]
    clear = [f"{m} {d.text()}" for m, d in others.items() if d.high < 0][:1]
    more = f" and {len(tied) - MAX_TIED} more" if len(tied) > MAX_TIED else ""
    return [
        name,
        best,
        score.text(form="{:.1f}"),
        "; ".join(tied[:MAX_TIED]) + more or "none",
        "; ".join(clear) or "none",
        f"{found.not_separated(settings, without)} of {len(others)}",
    ]


def _ranks(found: Benchmark) -> Part:
    ranks, in_time = found.ranks(), found.ranks(found.late(found.settings))
    text = (
        f"Mean over {len(found.settings)} settings, of methods with results in each of them; "
        "and the accuracy in each setting, %."
    )
    tables = [found.table([setting]) for setting in found.settings]
    rows = [
        [name]
        + [of[name].text(1, "{:.1f}") if name in of else "-" for of in (ranks, in_time)]
        + [interval(list(table[name])).text(form="{:.1f}") for table in tables]
        for name in ranks
    ]
    header = ["method", "mean rank", "among those in time", *found.settings]
    return Part("Mean rank", [text], header, rows)


def _of_setting(found: Benchmark, setting: str, against: Sequence[str]) -> Part:
    table, recall = found.table([setting]), found.table([setting], "recall")
    best = found.best([setting])
    runs = found.scores[found.scores.setting == setting].groupby("method")
    seconds = found.table([setting], "seconds").mean()
    # The largest age of all seeds, and means of the others.
    ages = runs[list(AGES)].mean().assign(max_staleness=runs["max_staleness"].max()).dropna()
    chosen = {name: _short(words) for name, words in runs["chosen"].first().items() if words}
    names = [best, *found.ahead_of(best, [setting])]
    columns = [
        ("accuracy, %", {n: interval(list(table[n])).text(form="{:.1f}") for n in names}),
        ("seconds", {n: f"{seconds[n]:.0f}" for n in names}),
    ]
    for title, rival in [("the best, points", best), *((n, n) for n in against if n in table)]:
        ahead = found.ahead_of(rival, [setting])
        columns.append((f"ahead of {title}", {n: each.text() for n, each in ahead.items()}))
    columns += [
        (
            "recall of the slow labels, % (lowest to highest seed)",
            {n: _with_range(list(recall[n])) for n in recall},
        ),
        (
            "ages: median, 90 %, largest",
            {n: ", ".join(f"{age:.0f}" for age in ages.loc[n]) for n in ages.index},
        ),
        ("searched values", chosen),
    ]
    shown = [(title, texts) for title, texts in columns if texts]
    rows = [[name, *(texts.get(name, "-") for _, texts in shown)] for name in names]
    return Part(setting, [], ["method", *(title for title, _ in shown)], rows)


def _with_range(shares: Sequence[float]) -> str:
    """A mean in percent with the range of the seeds; an interval could leave [0, 100]."""
    return f"{100 * fmean(shares):.1f} ({100 * min(shares):.1f} to {100 * max(shares):.1f})"


def _short(words: str) -> str:
    """Overrides without the groups of their keys, and with numbers of three digits."""
    return " ".join(
        re.sub(r"\d+\.\d+(?:e-?\d+)?$", lambda number: f"{float(number[0]):.3g}", word)
        for word in re.sub(r"\S+\.(?=\w+=)", "", words).split()
    )


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m fl_app.search.benchmark")
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
        for part in parts_of(found, given.against):
            print(part.markdown())
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
