"""Compares the cells of a run by their scores over some evaluations."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median, pstdev, stdev
from typing import TypeAlias

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fl_app.core.errors import require
from fl_app.record.history import Evaluation
from fl_app.record.score import ACCURACY, Score
from fl_app.record.targets import first_at, stays_at
from fl_app.report.cells import ENDS, Cell, common_score
from fl_app.report.printing import print_warnings
from fl_app.report.series import Series, group
from fl_app.report.table import megabytes
from fl_app.report.work import work_of

FIELDS = ("t", "client_updates", "version")  # of an evaluation, by which a run is measured

Choice: TypeAlias = Callable[[Cell], list[Evaluation]]


def last(number: int) -> Choice:
    """Choose the last `number` evaluations of every cell, at least 1."""
    require(number >= 1, "last", number, "at least 1", "there would be nothing to average")
    return lambda cell: cell.evaluations[-number:]


def between(field: str, first: float, last: float) -> Choice:
    """Choose the evaluations of every cell in an interval.

    If a cell has no evaluation in the interval, its last one before the interval is chosen, since
    that model was still the newest one tested.

    Args:
        field: "t" (seconds), "client_updates" or "version".
        first: start of the interval, >= 0, included.
        last: end of the interval, >= `first`, included.
    """
    require(
        0 <= first <= last,
        "mean",
        f"{first:g} {last:g}",
        "two numbers, the first at least 0 and the second no less",
        "no evaluation would lie between them",
    )

    def chosen(cell: Cell) -> list[Evaluation]:
        past = [e for e in cell.evaluations if getattr(e, field) <= last]
        return [e for e in past if getattr(e, field) >= first] or past[-1:]

    return chosen


def print_comparison(
    cells: Sequence[Cell], choice: Choice, target: float, console: Console | None = None
) -> None:
    """Print the table of `compare`, and below it the cells that did not reach their end.

    Args:
        cells: as for `compare`.
        choice: as for `compare`.
        target: as for `compare`.
        console: wide enough that no line breaks, or it is not Markdown; default standard output.
    """
    console = console or Console(width=1000)
    console.print(compare(cells, choice, target))
    if any(len(series.cells) > 1 for series in group(cells)):
        console.print("\nDeviations over seeds are sample deviations (n - 1).", highlight=False)
    if work := work_of(cells):
        console.print(f"\n{work}", highlight=False)
    print_warnings(
        [cell.name for cell in cells if cell.summary.get("data") == "stand-in"],
        [f"{c.name} ({c.stopped or 'no summary'})" for c in cells if c.stopped not in ENDS],
        console,
    )


def compare(cells: Sequence[Cell], choice: Choice, target: float) -> Table:
    """Tabulate the score, averaged over chosen evaluations; best first. Accuracies are in percent.

    The seeds of a cell share a row: mean and sample standard deviation (n - 1); the score of every
    seed; the population standard deviation between the evaluations of one run, averaged over the
    seeds; of accuracies, seconds, client updates and versions by which `target` was first
    evaluated, and seconds from which the mean of five evaluations stays there, for every seed;
    means over the seeds of seconds, client updates, 10^6 bytes and effective clients (the median
    over a run's aggregations). "-" is unknown.

    Args:
        cells: of a run.
        choice: chooses the evaluations of a cell.
        target: accuracy in (0, 1].

    Returns:
        A table that prints as Markdown.

    Raises:
        ValueError: as `fl_app.report.cells.common_score`.
    """
    score = common_score(cells)
    table = Table(box=box.MARKDOWN, header_style="")
    of_target = (
        f"first at {target:.0%}: seconds",
        "updates",
        "versions",
        f"stays at {target:.0%}: seconds",
    )
    for title in (
        "cell",
        score.name,
        "by seed",
        "within a run",
        *(of_target if score == ACCURACY else ()),
        "seconds in all",
        "updates in all",
        "MB",
        "effective clients",
    ):
        table.add_column(title, no_wrap=True)
    rows = [_row(series, choice, score, target) for series in group(cells)]
    for _, texts in sorted(rows, key=lambda row: row[0]):
        table.add_row(*map(escape, texts))
    return table


def _row(series: Series, choice: Choice, score: Score, target: float) -> tuple[float, list[str]]:
    """A number that is lower for better rows, and the row."""
    cells = series.cells
    unit, form = (100, "{:.1f}") if score.is_share else (1, score.form)
    runs = [[unit * e.value(score.name) for e in choice(cell)] for cell in cells]
    scores = [fmean(run) for run in runs if run]
    mean = fmean(scores) if scores else math.nan
    within = [pstdev(run) for run in runs if run]
    spread = [stdev(scores)] if len(scores) > 1 else []
    rank = math.inf if math.isnan(mean) else -mean if score.higher_is_better else mean
    return rank, [
        series.name,
        " ± ".join(form.format(each) for each in (mean, *spread)) if scores else "-",
        ", ".join(form.format(fmean(run)) if run else "-" for run in runs),
        form.format(fmean(within)) if within else "-",
        *(_of_target(cells, target) if score == ACCURACY else ()),
        _mean([cell.history.t for cell in cells]),
        _mean([cell.history.client_updates for cell in cells]),
        _mean([both for cell in cells if (both := _megabytes(cell)) is not None]),
        _mean([median(told) for cell in cells if (told := _effective_clients(cell))], 1),
    ]


def _of_target(cells: Sequence[Cell], target: float) -> list[str]:
    """When each cell was first at its target accuracy, and when it was there to stay."""
    reached = [first_at(cell.evaluations, target) for cell in cells]
    stays = [stays_at(cell.evaluations, target) for cell in cells]
    return [
        *(
            ", ".join("never" if e is None else f"{getattr(e, field):,.0f}" for e in reached)
            for field in FIELDS
        ),
        ", ".join("never" if e is None else f"{e.t:,.0f}" for e in stays),
    ]


def _mean(numbers: Sequence[float], digits: int = 0) -> str:
    return f"{fmean(numbers):,.{digits}f}" if numbers else "-"


def _megabytes(cell: Cell) -> float | None:
    down, up = (megabytes(cell.summary.get(key)) for key in ("bytes_down", "bytes_up"))
    return None if down is None or up is None else down + up


def _effective_clients(cell: Cell) -> list[float]:
    return [number for _, number in cell.reports.get("effective_clients", [])]
