"""The page of an entry, from the test runs: three protocols, and its place in each.

Intervals are 95 % intervals of Student's t distribution over the seeds; methods are compared seed
by seed, since a seed decides who has which data and which devices.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pandas as pd
from scipy.stats import t

from fl_app.benchmark.conformance import Verdict
from fl_app.core.files import write_text
from fl_app.record.folder import SUMMARY, TABLE, read_summary
from fl_app.search.search import score_of

LEVEL = 0.95
PAGE, NUMBERS = "page.md", "results.json"
DOCS = Path(__file__).resolve().parents[2] / "docs"  # in a clone: the published runs
LAST = 0.1  # final share of the seconds; its evaluations are averaged
HOLDS = {True: "holds", False: "**FAILS**", None: "does not apply"}


class Interval(NamedTuple):
    """A mean with its interval."""

    mean: float
    low: float
    high: float

    def text(self, form: str = "{:+.1f}") -> str:
        """Such as "-1.2 [-2.0, -0.4]"."""
        return f"{form} [{form}, {form}]".format(*(100 * value for value in self))

    def short(self, unit: float = 100) -> str:
        """Such as "1.2±0.8"."""
        return f"{unit * self.mean:.1f}±{unit * (self.high - self.mean):.1f}"


def interval(values: Sequence[float]) -> Interval:
    """The mean of values, one per seed and at least two, with its interval."""
    mean = fmean(values)
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Scores:
    """Results of methods in settings.

    Attributes:
        scores: a row for each run; columns method, setting, seed, and measures such as accuracy in
            [0, 1].
    """

    scores: pd.DataFrame

    @property
    def settings(self) -> list[str]:
        """In the order of the configuration."""
        return list(dict.fromkeys(self.scores.setting))

    def table(self, settings: Sequence[str], measure: str = "accuracy") -> pd.DataFrame:
        """Mean of a measure over settings: a row for each seed, a column for each method.

        Methods without a result in every setting and seed are left out, and so are seeds that one
        of the settings lacks.
        """
        selection = self.scores[self.scores.setting.isin(settings)]
        wide = selection.pivot_table(index=["setting", "seed"], columns="method", values=measure)
        by_seed = wide.dropna(axis=1).groupby("seed")
        return by_seed.mean()[by_seed.size() == len(settings)]

    def ahead_of(self, method: str, settings: Sequence[str]) -> dict[str, Interval]:
        """The lead of each other method over one in some settings, best first."""
        table = self.table(settings)
        order = table.mean().sort_values(ascending=False).index
        return {str(m): interval(list(table[m] - table[method])) for m in order if m != method}

    def ranks_by_seed(self) -> pd.DataFrame:
        """Mean rank over all settings: a row for each seed, a column for each complete method."""
        complete = self.table(self.settings)
        index = ["seed", "setting", "method"]
        wide = self.scores.set_index(index).accuracy.unstack()[complete.columns]
        return wide.rank(axis=1, ascending=False).loc[complete.index].groupby("seed").mean()

    def ranks(self) -> dict[str, Interval]:
        """The mean rank of each method over all settings, best first."""
        by_seed = self.ranks_by_seed()
        means = {str(method): interval(list(by_seed[method])) for method in by_seed}
        return dict(sorted(means.items(), key=lambda item: item[1].mean))


def section(
    title: str, texts: Sequence[str], header: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """A table in Markdown below its title and texts; "" without rows."""
    lines = [f"## {title}", "", *([*texts, ""] if texts else [])]
    lines += ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "\n"]) if rows else ""


def rank_section(scores: Scores, title: str, texts: Sequence[str], names: Mapping[str, str]) -> str:
    """A table of mean ranks, and of the accuracy in each setting; `names` replace methods'."""
    tables = [scores.table([setting]) for setting in scores.settings]
    rows = [
        [names.get(name, name), rank.short(1)]
        + [interval(list(table[name])).short() for table in tables]
        for name, rank in scores.ranks().items()
    ]
    return section(title, texts, ["method", "mean rank", *scores.settings], rows)


def read(folder: Path, seconds: float) -> pd.DataFrame:
    """A row for each test run: accuracy at the end, `early`, and updates and seconds to a target.

    A failed run has no row.

    Args:
        folder: of the test runs.
        seconds: virtual ones. `early` is the mean accuracy of the evaluations in their last tenth,
            or the last one of their second half; missing if there is none.
    """
    rows = []
    for path in sorted(folder.glob(f"*@*/{SUMMARY}")):
        summary, curve = read_summary(path.parent), pd.read_csv(path.parent / TABLE)
        if (score := score_of(summary, "last10")) is not None:
            curve = curve[(curve.t <= seconds) & (curve.t >= seconds / 2)]
            late = curve[curve.t >= (1 - LAST) * seconds]
            early = (curve.tail(1) if late.empty else late).accuracy.mean()
            name, cost = path.parent.name.replace("-seed", "@").split("@"), ("updates", "seconds")
            rows.append([*name, score, early, *(summary[f"{key}_to_target"] for key in cost)])
    columns = ["method", "setting", "seed", "accuracy", "early", "updates", "seconds"]
    kinds = {"seed": int, **dict.fromkeys(columns[3:], float)}
    return pd.DataFrame(rows, columns=columns).astype(kinds)


def write(
    folder: Path,
    name: str,
    text: str,
    verdicts: Sequence[Verdict],
    runs: pd.DataFrame,
    published: pd.DataFrame,
    budget: tuple[int, float, float],
) -> str:
    """Write the page and its numbers; return the sentence with the entry's place.

    Args:
        folder: for both files.
        name: of the entry.
        text: how it was run.
        verdicts: of its conformance.
        runs: as of `read`.
        published: results of further methods after as many updates; it may be empty.
        budget: client updates, virtual seconds and the target accuracy.
    """
    bold, places = {name: f"**{name}**"}, []
    rows = [[verdict.name, HOLDS[verdict.holds], verdict.detail] for verdict in verdicts]
    parts = [f"# {name} in the benchmark\n\n{text}\n\n"]
    parts += [section("Conformance", [], ["property", "verdict", "found"], rows)]
    others = published[~published.method.isin(runs.method)]
    for title, measure, more in (
        (f"Quality after {budget[0]:,} updates", "accuracy", [others]),
        (f"Quality after {budget[1]:g} virtual seconds", "early", []),
    ):
        entered = runs.assign(accuracy=runs[measure]).dropna(subset="accuracy")
        scores = Scores(pd.concat([entered, *more]).sort_values("setting", kind="stable"))
        places.append(_place(scores, name))
        texts = [places[-1], "", "Accuracy in percent, ± half of the interval."]
        texts[2] += " Methods that lack a result in one of the settings are left out."
        parts.append(rank_section(scores, title, texts, bold))
    cost = runs.groupby(["method", "setting"], sort=False)[["updates", "seconds"]].agg(list)
    table = cost.apply(_cost, axis=1).unstack("setting").fillna("-")
    rows = [[bold.get(row[0], row[0]), *row[1:]] for row in table.itertuples()]
    caption = "Client updates and virtual seconds until an evaluation first reaches it, means over "
    caption += "the seeds that do; and how many do, if not all."
    parts.append(section(f"Cost to {budget[2]:.0%}", [caption], ["method", *table.columns], rows))
    numbers = {"entry": name, "places": places, "conformance": [v._asdict() for v in verdicts]}
    numbers["runs"] = json.loads(pd.concat([runs, others]).to_json(orient="records"))
    for file_name, content in ((PAGE, "".join(parts)), (NUMBERS, json.dumps(numbers, indent=2))):
        write_text(folder / file_name, content.rstrip("\n") + "\n")
    return places[0]


def _place(scores: Scores, name: str) -> str:
    ranks = list(scores.ranks())
    if name not in ranks:
        return f"{name} lacks a result in one of the settings, and has no place."
    ahead = scores.ahead_of(name, scores.settings)
    ties = [method for method, lead in ahead.items() if lead.low <= 0 <= lead.high]
    better = sum(lead.low > 0 for lead in ahead.values())
    return (
        f"{name} is number {ranks.index(name) + 1} of {len(ranks)} by mean rank. In mean accuracy "
        f"{better} are ahead of it, {len(ahead) - better - len(ties)} behind, and {len(ties)} tie "
        f"({', '.join(ties) or 'none'})."
    )


def _cost(runs: "pd.Series[Any]") -> str:
    pairs = [pair for pair in zip(*runs, strict=True) if pair[0] == pair[0]]
    means = [fmean(numbers) for numbers in zip(*pairs, strict=True)]
    text = "{:,.0f} in {:.1f} s".format(*means) if pairs else "-"
    partial = 0 < len(pairs) < len(runs.updates)
    return text + f" ({len(pairs)} of {len(runs.updates)})" * partial
