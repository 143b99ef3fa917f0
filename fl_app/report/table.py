"""The table of a run: a row for each cell, and mean and standard deviation over its seeds."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from textwrap import shorten
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from fl_app.core.errors import require
from fl_app.core.score import ACCURACY, Score
from fl_app.record.summary import finite_mean, late, mean_age, of_target
from fl_app.report.cells import ENDS, RUNNING, Cell, group, scores_of

Row: TypeAlias = dict[str, Any]

MATERIAL = 1.1  # ratio of client updates above which work is unequal
UNBOUNDED = 100_000
LONGEST = 40  # characters of a text on the console
# Columns, the most important first: field of a row, two lines of a title, format, and the function
# that picks the best value. A score has its own title, format and best value.
_COLUMNS: tuple[tuple[str, str, str, str, Callable[[list[float]], float] | None], ...] = (
    ("final_{score}", "{title}", "{last}", "", None),
    ("best_{score}", "{title}", "best", "", None),
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
    ("wall_updates_per_second", "wall", "upd/s", "{:,.0f}", None),
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
class Table:
    """The results of a run.

    Attributes:
        rows: of its cells: values by the names of columns; None is unknown or never happened. The
            seeds of a cell are followed by their mean and their sample standard deviation (n - 1).
            These are None where the value of a seed is None; a text is kept if all seeds share it.
        scores: metrics by which the cells are judged; usually one, whose name columns have, such as
            ``final_accuracy``. If there are several, these are ``final_score`` and so on.
        target_accuracy: in (0, 1], to which times are measured.
        work: sentences if the cells did unequal work; else empty.
        last: evaluations at a run's end over which its first score is a mean.

    The columns are

    - ``cell``: name of the cell; of several seeds, their label; ``algorithm``: its name
    - ``final_...``, ``best_...``: mean score of the `last` evaluations, and best of any;
      ``last10_...``: mean of the last ten, without version 0
    - ``seconds_to_target``, ``updates_to_target``: on the run's clock, until the target accuracy
      was first evaluated, and client updates that had arrived by then
    - ``seconds_to_stay_at_target``, ``updates_to_stay_at_target``: until the evaluation from which
      the mean of the last five was never again below the target
    - ``mean_staleness``, ``max_staleness``: age of aggregated updates, versions
    - ``mb_down``, ``mb_up``: sent to and received from clients, 10^6 bytes
    - ``client_updates``: that arrived and were accepted; ``wall_updates_per_second``: their rate
      in real time
    - ``at_work``: the most clients that were at work at one time; ``work_per_update``: steps or
      epochs that a client trains for an upload, or one mini-batch
    - ``failures``: orders that ended without an update; ``rejected``: replies that were rejected
    - ``stopped``: what ended the run
    - ``statistic``: "run" for one cell, "mean" or "std" over its seeds; ``num_seeds``: of the row
    - ``label``: shared by the seeds of a cell; ``seed`` and ``folder``: of the run
    - ``target_accuracy``; ``score``: if there are several
    """

    rows: list[Row]
    scores: list[Score]
    target_accuracy: float
    work: str = ""
    last: int = 1

    @property
    def deviation(self) -> str:
        """A sentence on the statistics of several seeds; empty if no cell has several."""
        several = any(row["statistic"] == "std" for row in self.rows)
        return "Of several seeds: mean and sample standard deviation (n - 1)." if several else ""

    @property
    def shown(self) -> list[Row]:
        """The rows that `columns` shows."""
        return [row for row in self.rows if row["statistic"] != "std"]

    @property
    def names(self) -> list[str]:
        """Names of the shown rows, with the number of seeds if there are several."""
        return [
            row["cell"] if row["num_seeds"] == 1 else f"{row['cell']} ({row['num_seeds']} seeds)"
            for row in self.shown
        ]

    def of_series(self) -> list[tuple[Row, Row | None]]:
        """For each cell its row, or the mean over its seeds with the standard deviation."""
        spreads = {row["label"]: row for row in self.rows if row["statistic"] == "std"}
        return [
            (row, spreads.get(row["label"]))
            for row in self.shown
            if row["statistic"] == "mean" or row["label"] not in spreads
        ]

    def columns(self) -> list[Column]:
        """The shown columns but the names, the most important first."""
        score = _score_name(self.scores)
        title = "acc." if self.scores == [ACCURACY] else score
        series = self.of_series()
        spreads = dict((row["label"], spread) for row, spread in series)
        columns = []
        for key, over, below, form, best in _COLUMNS:
            field = key.format(score=score)
            if field not in self.rows[0]:
                continue
            if field != key and len(self.scores) == 1:
                best = max if self.scores[0].higher_is_better else min
            values = [row[field] for row, _ in series if row[field] is not None]
            winner = best(values) if best and len(values) > 1 else None
            texts, winners = [], []
            for number, row in enumerate(self.shown):
                value, spread = row[field], spreads[row["label"]]
                template = Score(row["score"]).form if field != key and row["score"] else form
                is_mean = row["statistic"] == "mean"
                text = "-" if value is None else template.format(value)
                if is_mean and spread and isinstance(value, int | float):
                    text += f" \u00b1{template.format(spread[field]).rstrip('%')}"
                if (is_mean or not spread) and value is not None and value == winner:
                    winners.append(number)
                texts.append(text)
            over = over.format(title=title, target=f"{self.target_accuracy:.0%}")
            below = below.format(last="final" if self.last == 1 else f"last {self.last}")
            columns.append(Column(over, below, texts, winners))
        return columns

    def write(self, path: Path) -> None:
        """Write all columns as CSV; None is an empty cell."""
        names = [name for name in self.rows[0] if name != "score" or len(self.scores) > 1]
        import pandas as pd  # takes half a second

        table = pd.DataFrame(self.rows, columns=names, dtype=object)
        table.to_csv(path, index=False, lineterminator="\n")

    def print(self, console: Console | None = None) -> None:
        """Print the table, and sentences about it.

        The best mean scores and the shortest mean times to the target are bold. A narrow terminal
        folds long names and leaves out the least important columns. A file or a pipe gets all
        columns in unbroken lines, unless the environment variable COLUMNS limits the width.
        """
        console = console or Console()
        if not (console.is_terminal or os.environ.get("COLUMNS", "").isdigit()):
            console = Console(file=console.file, width=UNBOUNDED)
        columns = self.columns()
        shown = list(columns)
        half = console.width // 2
        wide = console.options.update(width=UNBOUNDED)
        while (
            len(shown) > 1
            and console.measure(self._render(shown, half), options=wide).maximum > console.width
        ):
            shown.pop()
        console.print(self._render(shown, half))
        if hidden := [f"{column.group} {column.title}".strip() for column in columns[len(shown) :]]:
            sentence = f"Left out for lack of room: {', '.join(hidden)}. "
            console.print(f"{sentence}All columns are in table.csv.", style="dim", highlight=False)
        for sentence in filter(None, (self.deviation, self.work)):
            console.print(sentence, highlight=False)
        runs = [row for row in self.rows if row["statistic"] == "run"]
        if unfinished := [row for row in runs if row["stopped"] not in ENDS]:
            names = ", ".join(f"{row['cell']} ({row['stopped'] or RUNNING})" for row in unfinished)
            console.print(f"NOT RUN TO THEIR END: {escape(names)}", style="bold", highlight=False)

    def _render(self, columns: Sequence[Column], name_width: int) -> RichTable:
        table = RichTable(box=None, pad_edge=False, header_style="dim")
        table.add_column("\ncell", overflow="fold", max_width=name_width)
        group = ""
        for column in columns:
            title = f"{column.group if column.group != group else ''}\n{column.title}"
            is_text = column.title == "stopped"
            table.add_column(title, justify="left" if is_text else "right", no_wrap=True)
            group = column.group
        for number, name in enumerate(self.names):
            texts = []
            for column in columns:
                # The full reason why a run ended is below the table.
                text = escape(shorten(column.texts[number], LONGEST, placeholder=" ..."))
                texts.append(f"[bold]{text}[/bold]" if number in column.best else text)
            table.add_row(escape(name), *texts)
        return table


def make_table(cells: Sequence[Cell], target_accuracy: float, last: int = 1) -> Table:
    """Collect the rows from the cells' histories and summaries.

    Raises:
        ValueError: `last` is below 1, or a cell has fewer evaluations.
    """
    shortest = min(cells, key=lambda cell: len(cell.evaluations))
    max_last = max(1, len(shortest.evaluations))
    bound = f"an integer >= 1, or final, and at most {max_last}, the evaluations of {shortest.name}"
    require(1 <= last <= max_last, "last", last, bound, "a mean is over so many evaluations")
    scores = scores_of(cells)
    rows: list[Row] = []
    for series in group(cells):
        seeds = [_row(cell, scores, target_accuracy, last) for cell in series.cells]
        rows += seeds
        if len(seeds) > 1:
            for statistic, function in (("mean", fmean), ("std", stdev)):
                row = {key: _over([seed[key] for seed in seeds], function) for key in seeds[0]}
                row |= {"cell": series.name, "statistic": statistic, "num_seeds": len(seeds)}
                rows.append({**row, "seed": None, "folder": None})
    if ACCURACY in scores:
        rows = [{**row, "target_accuracy": target_accuracy} for row in rows]
    return Table(rows, scores, target_accuracy, work_of(cells), last)


def _over(values: list[Any], function: Callable[[list[float]], float]) -> Any:
    """A statistic of numbers; of texts, the one that all seeds share; None if one is unknown."""
    if any(value is None or isinstance(value, str) for value in values):
        return values[0] if len(set(values)) == 1 else None
    return function(values)


def _row(cell: Cell, scores: Sequence[Score], target_accuracy: float, last: int) -> Row:
    summary, history, score = cell.summary, cell.history, cell.score
    row: Row = {"cell": cell.name, "algorithm": cell.algorithm}
    if scores:
        name = score.name if score else ""
        values = [e.metrics[name] for e in history.evaluations if name in e.metrics]
        row |= {
            "final_{score}": finite_mean(values[-last:]),
            "best_{score}": score.best(values) if score else None,
            "last10_{score}": finite_mean(late(history.evaluations, name)),
        }
    if ACCURACY in scores:
        times = of_target(cell.evaluations if score == ACCURACY else [], target_accuracy)
        row |= {key: times[key] for key in times if key.startswith(("seconds_", "updates_"))}
    row |= {
        "mean_staleness": mean_age(history.ages) if history.ages else None,
        "max_staleness": max(history.ages, default=None),
        "mb_down": _megabytes(summary.get("bytes_down")),
        "mb_up": _megabytes(summary.get("bytes_up")),
        "client_updates": history.client_updates,
        "wall_updates_per_second": summary.get("wall_updates_per_second"),
        "at_work": at_work(cell),
        "work_per_update": summary.get("work_per_update"),
        "failures": history.failures,
        "rejected": history.rejected,
        "stopped": summary.get("stopped"),
        "statistic": "run",
        "num_seeds": 1,
        "label": cell.label,
        "seed": cell.seed,
        "folder": cell.folder,
    }
    row["score"] = score.name if score else None
    return {key.format(score=_score_name(scores)): value for key, value in row.items()}


def _score_name(scores: Sequence[Score]) -> str:
    """The metric by which all cells are judged, or "score" if there are several."""
    return scores[0].name if len(scores) == 1 else "score"


def _megabytes(num_bytes: float | None) -> float | None:
    return None if num_bytes is None else num_bytes / 1e6


# -- equal work ------------------------------------------------------------------------------------


def at_work(cell: Cell) -> int | None:
    """The most clients that were at work at one time; None if none ever was."""
    orders = cell.history.orders
    starts = np.sort([order.start for order in orders])
    ends = np.sort([np.inf if order.end is None else order.end for order in orders])
    num_ended = np.searchsorted(ends, starts, side="right")
    return max((np.arange(1, len(orders) + 1) - num_ended).tolist(), default=None)


def work_of(cells: Sequence[Cell]) -> str:
    """Sentences on how much the cells' work differed; empty if it hardly did.

    A comparison is fair if all cells had the same time, or ran until their target accuracy.
    It is not fair if they only published equally many versions. Cells that did not reach their end
    are left out.
    """
    kinds = dict.fromkeys(w for c in cells if (w := c.summary.get("work_per_update")))
    places = [number for cell in cells if (number := at_work(cell)) is not None]
    differences = []
    if len(kinds) > 1:
        differences.append(f"in what they do per update: {', '.join(kinds)}")
    if places and max(places) > MATERIAL * min(places):
        differences.append(f"in how many clients are at work: {min(places):,} to {max(places):,}")
    sentences = []
    if differences:
        unequalised = any(cell.get("compare") is None for cell in cells)
        remedy = "; compare=equal makes equal what their equations allow" if unequalised else ""
        sentences.append(f"Cells differ {', and '.join(differences)}{remedy}.")
    complete = [cell for cell in cells if cell.stopped in ENDS]
    gaps = [
        cell.evaluations[-1].client_updates / (len(cell.evaluations) - 1)
        for cell in complete
        if len(cell.evaluations) > 1
    ]
    if gaps and max(gaps) > 2 * min(gaps):
        text = f"Cells are evaluated every {min(gaps):,.0f} to {max(gaps):,.0f} client updates"
        sentences.append(f"{text} (eval_every counts versions), and their last ten means differ.")
    counts = [cell.history.client_updates for cell in complete]
    if counts and max(counts) > MATERIAL * min(counts):
        text = f"Unequal work: {min(counts):,} to {max(counts):,} client updates a cell"
        if not {cell.stopped for cell in complete} <= {"seconds", "target_accuracy"}:
            equal = f"max_updates={max(counts)} num_versions=null"
            text += f"; compare at equal updates with {equal}"
        sentences.append(f"{text}.")
    return "\n".join(sentences)
