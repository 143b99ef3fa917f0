"""``python -m fl_app.search.benchmark FOLDER``: the page of a benchmark from its judged runs.

FOLDER is that of a search with ``search.test_seeds``, of an experiment that crosses cells with
settings, or one with several such searches of different settings. It may also be the CSV file that
``--csv`` writes; the page is then in ``outputs/``. `fl_app.search.judged` says where every number
comes from.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from fl_app.core.errors import require
from fl_app.core.extras import require_installed, told_if_missing
from fl_app.search.judged import AGES, CHOSEN, LATE, Benchmark, interval, read, write

if TYPE_CHECKING:
    from fl_app.report.document import Part

PAGE = "benchmark.html"
MAX_TIED = 6  # methods that are named beside the best one


def advice(found: Benchmark) -> list[list[str]]:
    """What to choose when: a row for each group of settings, derived from the results.

    Where methods need more time than the others, a second row leaves them out.
    """
    rows = []
    for name, settings in found.groups().items():
        rows.append(_choice(found, name, settings, []))
        late = found.late(settings)
        if late and not found.table(settings, without=late).empty:
            rows.append(_choice(found, f"{name}, in time", settings, late))
    return rows


def _choice(
    found: Benchmark, name: str, settings: Sequence[str], without: Sequence[str]
) -> list[str]:
    best, others = found.behind_best(settings, without)
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


def write_page(
    found: Benchmark, path: Path, against: Sequence[str] = (), other: Benchmark | None = None
) -> None:
    """Write the page; `against` and `other` as of `parts_of`."""
    require_installed("jinja2", "plotly")
    from fl_app.report.document import write_document

    facts = [
        ("methods", str(found.scores.method.nunique())),
        ("settings", str(len(found.settings))),
        ("seeds", ", ".join(map(str, sorted(set(found.scores.seed))))),
        ("measure", "mean accuracy of a run's last ten evaluations"),
    ]
    write_document(path, "Benchmark", facts, parts_of(found, against, other))


def markdown(parts: Sequence["Part"]) -> str:
    """The tables of a page, for a page in Markdown."""
    lines = []
    for part in parts:
        lines += [f"## {part.title}", "", *part.texts, ""]
        lines += ["| " + " | ".join(part.header) + " |", "|---" * len(part.header) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in part.rows]
        lines.append("")
    return "\n".join(lines)


def parts_of(
    found: Benchmark, against: Sequence[str] = (), other: Benchmark | None = None
) -> list["Part"]:
    """The page: what to choose when, mean ranks, each setting, and what went wrong.

    Args:
        found: the results.
        against: methods with which each other one is compared, besides the best.
        other: results of another benchmark, whose orders of methods are compared with these.
    """
    from fl_app.report.charts import layout_of
    from fl_app.report.document import Part
    from fl_app.report.style import INK

    lacking = (
        f"{len(found.missing)} runs have no result (the last table). A method that lacks one in a "
        "setting is left out of the setting's comparison and of means over it."
    )
    parts = [
        Part(
            "What to choose when",
            [
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
            ],
            [
                *("settings", "best", "accuracy, %", "tied with it", "best of those behind it"),
                "not separated (Holm)",
            ],
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
        text = (
            f"Mean over {len(found.settings)} settings, of methods with results in each of them; "
            "and the accuracy in each setting, %."
        )
        in_time = found.ranks(found.late(found.settings))
        tables = [found.table([setting]) for setting in found.settings]
        rows = [
            [name]
            + [of[name].text(1, "{:.1f}") if name in of else "-" for of in (ranks, in_time)]
            + [interval(list(table[name])).text(form="{:.1f}") for table in tables]
            for name in ranks
        ]
        header = ["method", "mean rank", "among those in time", *found.settings]
        parts.append(Part("Mean rank", [text], header, rows, [figure], True))
    if other is not None:
        parts.append(_agreement(found, other))
    parts += [_of_setting(found, setting, against) for setting in found.settings]
    if found.failed or found.missing:
        rows = [[name, reason] for name, reason in found.failed.items()]
        rows += [[name, "no result"] for name in found.missing]
        text = "A run with a reason counts with the evaluations that it had."
        parts.append(Part("Runs that did not reach their end", [text], ["run", "reason"], rows))
    return parts


def _agreement(found: Benchmark, other: Benchmark) -> "Part":
    from fl_app.report.document import Part

    shared = set(found.scores.method) & set(other.scores.method)
    other = other.without(set(other.scores.method) - shared)
    text = (
        f"Kendall's tau between the orders of {len(shared)} methods in a setting of this benchmark "
        '(rows) and of the other one (columns), and between those of the other one (rows "there"): '
        "1 is the same order, 0 none, -1 the reverse. Means over the shared seeds with 95 % "
        "intervals. The last column is the mean tau between the orders with any two seeds of the "
        "row's setting: orders that differ by chance alone agree so far."
    )
    rows = []
    for each, name in ((found, ""), (other, " there")):
        for setting in each.settings:
            row = [
                "-"
                if each is other and setting == column
                else each.agreement(setting, other, column).text(1, "{:.2f}")
                for column in other.settings
            ]
            own = f"{each.agreement_of_seeds(setting, shared):.2f}"
            rows.append([setting + name, *row, own])
    header = ["setting", *other.settings, "its own seeds"]
    return Part("How far the orders agree", [text], header, rows)


def _of_setting(found: Benchmark, setting: str, against: Sequence[str]) -> "Part":
    from fl_app.report.document import Part

    table = found.table([setting])
    best, others = found.behind_best([setting])
    rivals = {name: found.ahead_of(name, setting) for name in against if name in table}
    has_recall = not found.scores[found.scores.setting == setting].recall.isna().all()
    recall = found.table([setting], "recall") if has_recall else None
    seconds = found.table([setting], "seconds").mean()
    header = ["method", "accuracy, %", "seconds", "ahead of the best, points"]
    header += [f"ahead of {name}" for name in rivals]
    header += ["recall of the slow labels, % (lowest to highest seed)"] * has_recall
    runs = found.scores[found.scores.setting == setting].groupby("method")
    # The largest age of all seeds, and means of the others.
    ages = runs[list(AGES)].mean().assign(max_staleness=runs["max_staleness"].max()).dropna()
    header += ["ages: median, 90 %, largest"] * (len(ages) > 0)
    chosen = runs[CHOSEN].first()
    header += ["searched values"] * bool(chosen.any())
    rows = []
    for method in [best, *others]:
        row = [method, interval(list(table[method])).text(form="{:.1f}")]
        row.append(f"{seconds[method]:.0f}")
        for ahead in (others, *rivals.values()):
            row.append(ahead[method].text() if method in ahead else "-")
        if recall is not None:
            known = method in recall
            row.append(_with_range(list(recall[method])) if known else "-")
        if len(ages) > 0:
            known = method in ages.index
            row.append(", ".join(f"{age:.0f}" for age in ages.loc[method]) if known else "-")
        if chosen.any():
            row.append(_short(chosen[method]) or "-")
        rows.append(row)
    return Part(setting, [], header, rows)


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
    """Read the command line, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m fl_app.search.benchmark")
    help_folder = "of the search, of searches, or of judged runs; or a file of --csv"
    parser.add_argument("folder", type=Path, help=help_folder)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--markdown", action="store_true", help="print the tables instead")
    help_csv = "write the accuracies of all judged runs instead, from which the page can be rebuilt"
    output.add_argument("--csv", type=Path, metavar="FILE", help=help_csv)
    help_against = "methods with which each other one is compared, besides the best"
    parser.add_argument("--against", nargs="+", default=[], metavar="METHOD", help=help_against)
    help_without = "methods and settings that are left out"
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help=help_without)
    help_order = "another benchmark, whose orders of methods are compared with these"
    parser.add_argument("--order-of", type=Path, metavar="FOLDER", help=help_order)
    given = parser.parse_args(words)
    folder: Path = given.folder
    try:
        with told_if_missing():
            found = read(folder)
            names = {*found.scores.method, *found.scores.setting}
            for name in given.without:
                require(name in names, "--without", name, "a method or a setting", "it has no run")
            found = found.without(given.without)
            left = len(found.scores) > 0
            without = " ".join(given.without)
            require(left, "--without", without, "some of the methods and settings", "none is left")
            known = sorted(found.scores.method.unique())
            for name in given.against:
                require(name in known, "--against", name, f"among {', '.join(known)}", "no run")
            other = read(given.order_of) if given.order_of else None
            if given.markdown:
                print(markdown(parts_of(found, given.against, other)))
                return
            if given.csv:
                write(found, given.csv)
                if found.missing:
                    lacking = ", ".join(found.missing)
                    print(f"{given.csv} lacks runs without a result: {lacking}", file=sys.stderr)
                return
            page = (Path("outputs") if folder.is_file() else folder) / PAGE
            page.parent.mkdir(exist_ok=True)
            write_page(found, page, given.against, other)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"page: {page}")


if __name__ == "__main__":
    main()
