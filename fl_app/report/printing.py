"""The table of a run on the console, with as many columns as fit."""

import os
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from fl_app.record.score import ACCURACY
from fl_app.report.cells import ENDS
from fl_app.report.table import Row, Table, name

# Columns in the order in which a narrow terminal leaves them out. Name and final score always
# stay. The column "stopped" goes first, or last if a run did not reach its end.
LEAST_IMPORTANT = (
    "updates_per_second",
    "max_staleness",
    "rejected",
    "mb_down",
    "mb_up",
    "failures",
    "updates_to_stay_at_target",
    "mean_staleness",
    "updates_to_target",
    "best_score",
    "seconds_to_stay_at_target",
    "work_per_update",
    "at_work",
    "client_updates",
    "seconds_to_target",
)
MAX_STOPPED = 24  # characters per line of the column "stopped"
UNBOUNDED = 100_000


class _Column(NamedTuple):
    """A field of the rows as texts. Adjacent columns of a group share the group's title."""

    key: str
    group: str
    title: str
    texts: list[str]


def print_table(table: Table, console: Console | None = None) -> None:
    """Print the table, with mean and standard deviation below the seeds of a cell.

    The best mean scores and the shortest mean times to the target are bold. A narrow terminal
    shows long names in two lines and leaves out the least important columns. A file or a pipe gets
    all columns in unbroken lines, unless the environment variable COLUMNS limits the width.
    """
    console = console or Console()
    limited = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    if not limited:
        console = Console(file=console.file, width=UNBOUNDED)
    rows = [row for row in table.rows if row.statistic != "std"]
    names = [name(row) for row in rows]
    columns = _columns(table, rows)
    shown = list(columns)
    if limited:
        names = _in_two_lines(names, console.width // 2)
        shown = [_in_lines(column) if column.key == "stopped" else column for column in columns]
    drawn = _draw(names, shown)
    troubled = [key for key in ("rejected", "failures") if any(getattr(r, key) for r in rows)]
    least = sorted(LEAST_IMPORTANT, key=troubled.__contains__)  # stable: those go last
    usual = all(row.stopped in ENDS for row in rows if row.statistic == "run")
    for key in ("stopped", *least) if usual else (*least, "stopped"):
        if _width(drawn, console) <= console.width:
            break
        shown = [column for column in shown if column.key != key]
        drawn = _draw(names, shown)
    console.print(drawn)
    kept = {column.key for column in shown}
    left_out = [f"{c.group} {c.title}".strip() for c in columns if c.key not in kept]
    if left_out:
        told = f"Left out for lack of room: {', '.join(left_out)}. All columns are in table.csv."
        console.print(told, style="dim", highlight=False)
    for told in filter(None, (table.deviation, table.work)):
        console.print(told, highlight=False)
    print_stand_ins([row.cell for row in table.rows if row.data == "stand-in"], console)


def print_stand_ins(names: Sequence[str], console: Console) -> None:
    """Print which cells were trained on stand-in data; nothing if there are none."""
    if names:
        console.print(f"NOT THE REAL DATA but a stand-in: {escape(', '.join(names))}", style="bold")


def _columns(table: Table, rows: Sequence[Row]) -> list[_Column]:
    """All columns except the names."""

    def column(
        key: str, group: str, title: str, form: str, best: Callable[[list[float]], float] | None
    ) -> _Column:
        if best is not None:
            return _Column(key, group, title, _marked(table, rows, key, form, best))
        return _Column(key, group, title, [_text(row, key, form) for row in rows])

    target = f"at {table.target_accuracy:.0%}"
    scores = table.scores
    score = "acc." if scores == [ACCURACY] else table.score_name
    best = (max if scores[0].higher_is_better else min) if len(scores) == 1 else None
    columns = [
        column("final_score", score, "final", "", best),
        column("best_score", score, "best", "", best),
        column("seconds_to_target", target, "first s", "{:,.1f}", min),
        column("updates_to_target", target, "first upd.", "{:,.0f}", min),
        column("seconds_to_stay_at_target", target, "stays s", "{:,.1f}", min),
        column("updates_to_stay_at_target", target, "stays upd.", "{:,.0f}", min),
        column("mean_staleness", "stale", "mean", "{:.1f}", None),
        column("max_staleness", "stale", "max", "{:.0f}", None),
        column("mb_down", "MB", "down", "{:,.1f}", None),
        column("mb_up", "MB", "up", "{:,.1f}", None),
        column("client_updates", "client", "updates", "{:,.0f}", None),
        column("at_work", "at", "work", "{:,.0f}", None),
        column("work_per_update", "work per", "update", "{}", None),
        column("updates_per_second", "wall", "upd/s", "{:,.0f}", None),
        column("failures", "", "fail", "{:,.0f}", None),
        column("rejected", "", "rej", "{:,.0f}", None),
        column("stopped", "", "stopped", "{}", None),
    ]
    return [column for column in columns if table.has(column.key)]


def _draw(names: Sequence[str], columns: Sequence[_Column]) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, header_style="dim")
    drawn.add_column("\ncell", overflow="fold")
    group = ""
    for column in columns:
        title = f"{column.group if column.group != group else ''}\n{column.title}"
        is_text = column.key == "stopped"
        drawn.add_column(title, justify="left" if is_text else "right", no_wrap=True)
        group = column.group
    for cells in zip(map(escape, names), *(column.texts for column in columns), strict=True):
        drawn.add_row(*cells)
    return drawn


def _width(drawn: RichTable, console: Console) -> int:
    return console.measure(drawn, options=console.options.update(width=UNBOUNDED)).maximum


def _in_two_lines(names: Sequence[str], width: int) -> list[str]:
    """Break names at spaces, at `width` or as much more as two lines need."""
    while True:
        broken = [_wrap(each, width) for each in names]
        if all(len(lines) <= 2 for lines in broken):
            return ["\n".join(lines) for lines in broken]
        width += 1


def _in_lines(column: _Column) -> _Column:
    return column._replace(texts=["\n".join(_wrap(each, MAX_STOPPED)) for each in column.texts])


def _wrap(text: str, width: int) -> list[str]:
    whole = text.replace(" seeds)", "\xa0seeds)")  # no line break before "seeds"
    lines = textwrap.wrap(
        whole, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\xa0", " ") for line in lines]


def _text(row: Row, key: str, form: str) -> str:
    value = getattr(row, key)
    return "-" if value is None else escape(row.form(key, form).format(value))


def _marked(
    table: Table,
    rows: Sequence[Row],
    key: str,
    form: str,
    best: Callable[[list[float]], float],
) -> list[str]:
    """Values as text, means with their standard deviation, the best one in bold."""
    series = table.of_series()
    spreads = {row.cell: spread for row, spread in series if spread is not None}
    known = [value for row, _ in series if (value := getattr(row, key)) is not None]
    winner = best(known) if len(known) > 1 else None
    rivals = [row for row, _ in series]
    texts = []
    for row in rows:
        value = getattr(row, key)
        text = _text(row, key, form)
        if value is not None and row.statistic == "mean":
            spread = row.form(key, form).format(getattr(spreads[row.cell], key))
            text += f" \u00b1{spread.rstrip('%')}"
        best_of_all = value is not None and value == winner and row in rivals
        texts.append(f"[bold]{text}[/bold]" if best_of_all else text)
    return texts
