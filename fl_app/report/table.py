"""The table of a run: one row per cell, and mean and standard deviation over its seeds."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fl_app.record.measures import mean_age
from fl_app.record.score import ACCURACY, Score
from fl_app.record.targets import first_at, stays_at
from fl_app.report.cells import Cell
from fl_app.report.series import group
from fl_app.report.work import at_work, work_of

# Fields of a row that are empty where nothing was evaluated, or where nothing was judged by its
# accuracy.
OF_SCORE = ("final_score", "best_score", "last10_score")
OF_TARGET = (
    "seconds_to_target",
    "updates_to_target",
    "seconds_to_stay_at_target",
    "updates_to_stay_at_target",
)
# What is shown of a row, the most important first: its field, two lines of a title, its format, and
# which of several values is the best. The scores' title, format and best value are their own.
_COLUMNS: tuple[tuple[str, str, str, str, Callable[[list[float]], float] | None], ...] = (
    ("final_score", "{score}", "final", "", None),
    ("best_score", "{score}", "best", "", None),
    ("seconds_to_target", "at {target}", "first s", "{:,.1f}", min),
    ("updates_to_target", "at {target}", "first upd.", "{:,.0f}", min),
    ("seconds_to_stay_at_target", "at {target}", "stays s", "{:,.1f}", min),
    ("mean_staleness", "stale", "mean", "{:.1f}", None),
    ("client_updates", "client", "updates", "{:,.0f}", None),
    ("at_work", "at", "work", "{:,.0f}", None),
    ("work_per_update", "work per", "update", "{}", None),
    ("updates_to_stay_at_target", "at {target}", "stays upd.", "{:,.0f}", min),
    ("max_staleness", "stale", "max", "{:.0f}", None),
    ("failures", "", "fail", "{:,.0f}", None),
    ("rejected", "", "rej", "{:,.0f}", None),
    ("mb_down", "MB", "down", "{:,.1f}", None),
    ("mb_up", "MB", "up", "{:,.1f}", None),
    ("updates_per_second", "wall", "upd/s", "{:,.0f}", None),
    ("stopped", "", "stopped", "{}", None),
)


class Column(NamedTuple):
    """A field of the rows as texts, without those of standard deviations.

    Attributes:
        group: title that adjacent columns share; may be empty.
        title: of the column.
        texts: of the rows; a mean has its standard deviation.
        best: numbers of the rows with the best value, if cells compete.
    """

    group: str
    title: str
    texts: list[str]
    best: list[int]


@dataclass(frozen=True)
class Row:
    """The results of one cell; None is unknown or never happened.

    A row may also hold the mean or the sample standard deviation (n - 1) over the seeds of a cell.
    It is None where the value of a seed is None. A text is kept if all seeds share it.

    Attributes:
        cell: name of the cell; of several seeds, their label.
        algorithm: name of the algorithm.
        data: origin of the data; "stand-in" = synthetic data in place of the real data.
        final_score: metric by which the run is judged, of the last evaluation.
        best_score: of any evaluation.
        last10_score: mean of the last ten evaluations.
        seconds_to_target: on the run's clock, until the target accuracy was first evaluated.
        updates_to_target: client updates that had arrived by then.
        seconds_to_stay_at_target: until the evaluation from which the mean of the last five was
            never again below the target.
        updates_to_stay_at_target: client updates that had arrived by then.
        mean_staleness: age of aggregated updates, versions.
        max_staleness: age of aggregated updates, versions.
        mb_down: sent to clients, 10^6 bytes.
        mb_up: received from clients, 10^6 bytes.
        client_updates: that arrived and were accepted.
        updates_per_second: by the wall clock.
        at_work: the most clients that were at work at one time.
        work_per_update: steps or epochs that a client trains for an upload, or one mini-batch.
        failures: orders that ended without an update.
        rejected: replies that were rejected.
        stopped: what ended the run.
        statistic: "run" for one cell, "mean" or "std" over its seeds.
        num_seeds: of the row.
        label: shared by the seeds of a cell.
        seed: of the run.
        folder: of the run.
        score: metric by which the run is judged; None if nothing was evaluated.
    """

    cell: str
    algorithm: str
    data: str | None
    final_score: float | None
    best_score: float | None
    last10_score: float | None
    seconds_to_target: float | None
    updates_to_target: float | None
    seconds_to_stay_at_target: float | None
    updates_to_stay_at_target: float | None
    mean_staleness: float | None
    max_staleness: float | None
    mb_down: float | None
    mb_up: float | None
    client_updates: float
    updates_per_second: float | None
    at_work: float | None
    work_per_update: str | None
    failures: float
    rejected: float
    stopped: str | None
    statistic: str = "run"
    num_seeds: int = 1
    label: str = ""
    seed: float | None = None
    folder: str | None = None
    score: Score | None = None

    def form(self, field: str, usual: str) -> str:
        """The format of a field: that of the score, or the usual one."""
        return self.score.form if self.score is not None and field in OF_SCORE else usual


@dataclass(frozen=True)
class Table:
    """The results of a run.

    Attributes:
        rows: of its cells.
        target_accuracy: in (0, 1], to which times are measured.
        work: sentences if the cells did unequal work; else empty.
    """

    rows: tuple[Row, ...]
    target_accuracy: float
    work: str = ""

    @property
    def deviation(self) -> str:
        """A sentence on what is shown of several seeds; empty if no cell has them."""
        several = any(row.statistic == "std" for row in self.rows)
        return "Of several seeds: mean and sample standard deviation (n - 1)." if several else ""

    @property
    def scores(self) -> list[Score]:
        """The metrics by which the cells are judged, each once; usually one."""
        return list(dict.fromkeys(row.score for row in self.rows if row.score is not None))

    @property
    def score_name(self) -> str:
        """Name of the metric by which all cells are judged, or "score" if there are several."""
        return self.scores[0].name if len(self.scores) == 1 else "score"

    def has(self, field: str) -> bool:
        """Whether a field of the rows says anything of these cells."""
        if field in OF_TARGET:
            return ACCURACY in self.scores
        return field not in OF_SCORE or bool(self.scores)

    @property
    def shown(self) -> list[Row]:
        """The rows that `columns` shows."""
        return [row for row in self.rows if row.statistic != "std"]

    def columns(self) -> list[Column]:
        """What is shown of the rows beside their names, the most important first."""
        target = f"{self.target_accuracy:.0%}"
        scores = "acc." if self.scores == [ACCURACY] else self.score_name
        series = self.of_series()
        spreads = {row.label: spread for row, spread in series if spread is not None}
        columns = []
        for key, over, title, form, best in filter(lambda column: self.has(column[0]), _COLUMNS):
            if key in OF_SCORE and len(self.scores) == 1:
                best = max if self.scores[0].higher_is_better else min
            known = [value for row, _ in series if (value := getattr(row, key)) is not None]
            winner = best(known) if best and len(known) > 1 else None
            texts, winners = [], []
            for number, row in enumerate(self.shown):
                value, written = getattr(row, key), row.form(key, form)
                text = "-" if value is None else written.format(value)
                if row.statistic == "mean" and isinstance(value, int | float):
                    spread = written.format(getattr(spreads[row.label], key))
                    text += f" \u00b1{spread.rstrip('%')}"
                competes = row.statistic == "mean" or row.label not in spreads
                winners += [number] * (competes and value is not None and value == winner)
                texts.append(text)
            over = over.format(score=scores, target=target)
            columns.append(Column(over, title, texts, winners))
        return columns

    def of_series(self) -> list[tuple[Row, Row | None]]:
        """For each cell its row, or the mean over its seeds with the standard deviation."""
        spreads = {row.label: row for row in self.rows if row.statistic == "std"}
        return [
            (row, spreads.get(row.label))
            for row in self.rows
            if row.statistic == "mean" or (row.statistic == "run" and row.label not in spreads)
        ]


def make_table(cells: Sequence[Cell], target_accuracy: float) -> Table:
    """Collect the rows from the cells' histories and summaries.

    The seeds of a cell are followed by their mean and their standard deviation.
    """
    rows: list[Row] = []
    for series in group(cells):
        seeds = [_row(cell, target_accuracy) for cell in series.cells]
        rows += seeds
        if len(seeds) > 1:
            rows += [
                _over(seeds, series.name, "mean", fmean),
                _over(seeds, series.name, "std", stdev),
            ]
    return Table(tuple(rows), target_accuracy, work_of(cells))


def write_csv(table: Table, path: Path) -> None:
    """Write the table with a header; "-" stands for None.

    The columns of the score have its name, such as ``final_accuracy``. If there are several, they
    are ``final_score`` and so on, and a column ``score`` has the name.
    """
    names = [field.name for field in fields(Row) if table.has(field.name)]
    names.remove("score")
    titles = [name.replace("score", table.score_name) for name in names]
    several = len(table.scores) > 1
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        measured = table.has("seconds_to_target")
        writer.writerow([*titles, *["target_accuracy"] * measured, *["score"] * several])
        for row in table.rows:
            values = [getattr(row, name) for name in names]
            values += [table.target_accuracy] * measured
            values += [row.score and row.score.name] * several
            writer.writerow(["-" if value is None else value for value in values])


def name(row: Row) -> str:
    """Name of a row, with the number of seeds if there are several."""
    return row.cell if row.num_seeds == 1 else f"{row.cell} ({row.num_seeds} seeds)"


def _row(cell: Cell, target_accuracy: float) -> Row:
    summary, history, score = cell.summary, cell.history, cell.score
    judged = cell.evaluations if score == ACCURACY else []
    reached, stays = first_at(judged, target_accuracy), stays_at(judged, target_accuracy)
    scores = cell.scores
    return Row(
        cell=cell.name,
        algorithm=cell.algorithm,
        data=summary.get("data"),
        final_score=scores[-1] if scores else None,
        best_score=score.best(scores) if score else None,
        last10_score=fmean(scores[-10:]) if scores else None,
        seconds_to_target=reached.t if reached else None,
        updates_to_target=reached.client_updates if reached else None,
        seconds_to_stay_at_target=stays.t if stays else None,
        updates_to_stay_at_target=stays.client_updates if stays else None,
        mean_staleness=mean_age(history.ages) if history.ages else None,
        max_staleness=max(history.ages, default=None),
        mb_down=megabytes(summary.get("bytes_down")),
        mb_up=megabytes(summary.get("bytes_up")),
        client_updates=history.client_updates,
        updates_per_second=summary.get("updates_per_second"),
        at_work=at_work(cell),
        work_per_update=summary.get("work_per_update"),
        failures=history.failures,
        rejected=history.rejected,
        stopped=summary.get("stopped"),
        label=cell.label,
        seed=cell.seed,
        folder=cell.folder,
        score=score,
    )


def _over(
    seeds: Sequence[Row], name: str, statistic: str, of: Callable[[list[float]], float]
) -> Row:
    values: dict[str, Any] = {}
    for field in fields(Row):
        column = [getattr(row, field.name) for row in seeds]
        if any(value is None or isinstance(value, str | Score) for value in column):
            values[field.name] = column[0] if len(set(column)) == 1 else None
        else:
            values[field.name] = of(column)
    values |= {"cell": name, "statistic": statistic, "num_seeds": len(seeds)}
    return Row(**{**values, "seed": None, "folder": None})


def megabytes(num_bytes: float | None) -> float | None:
    """Bytes in 10^6 bytes; None if unknown."""
    return None if num_bytes is None else num_bytes / 1e6
