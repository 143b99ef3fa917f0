"""The table of a run on the console, with as many columns as fit."""

import os
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from fl_app.report.cells import ENDS
from fl_app.report.table import Column, Table, name

UNBOUNDED = 100_000


def print_table(table: Table, console: Console | None = None) -> None:
    """Print the table, with mean and standard deviation below the seeds of a cell.

    The best mean scores and the shortest mean times to the target are bold. A narrow terminal
    folds long names and leaves out the least important columns. A file or a pipe gets all columns
    in unbroken lines, unless the environment variable COLUMNS limits the width.
    """
    console = console or Console()
    limited = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    if not limited:
        console = Console(file=console.file, width=UNBOUNDED)
    names = [name(row) for row in table.shown]
    columns = table.columns()
    shown = list(columns)
    most = console.width // 2 if limited else None
    while len(shown) > 1 and _width(_draw(names, shown, most), console) > console.width:
        shown.pop()
    console.print(_draw(names, shown, most))
    if left_out := [f"{column.group} {column.title}".strip() for column in columns[len(shown) :]]:
        told = f"Left out for lack of room: {', '.join(left_out)}. All columns are in table.csv."
        console.print(told, style="dim", highlight=False)
    for told in filter(None, (table.deviation, table.work)):
        console.print(told, highlight=False)
    runs = [row for row in table.rows if row.statistic == "run"]
    print_warnings(
        [row.cell for row in runs if row.data == "stand-in"],
        [f"{row.cell} ({row.stopped})" for row in runs if row.stopped not in (*ENDS, None)],
        console,
    )


def print_warnings(made_up: Sequence[str], early: Sequence[str], console: Console) -> None:
    """Print which cells have stand-in data, and which did not run to their end; maybe nothing."""
    for told, names in (
        ("NOT THE REAL DATA but a stand-in", made_up),
        ("NOT RUN TO THEIR END", early),
    ):
        if names:
            console.print(f"{told}: {escape(', '.join(names))}", style="bold", highlight=False)


def _draw(names: Sequence[str], columns: Sequence[Column], most: int | None) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, header_style="dim")
    drawn.add_column("\ncell", overflow="fold", max_width=most)
    group = ""
    for column in columns:
        title = f"{column.group if column.group != group else ''}\n{column.title}"
        is_text = column.title == "stopped"
        drawn.add_column(title, justify="left" if is_text else "right", no_wrap=True)
        group = column.group
    for number, cell in enumerate(names):
        texts = [
            f"[bold]{escape(column.texts[number])}[/bold]"
            if number in column.best
            else escape(column.texts[number])
            for column in columns
        ]
        drawn.add_row(escape(cell), *texts)
    return drawn


def _width(drawn: RichTable, console: Console) -> int:
    return console.measure(drawn, options=console.options.update(width=UNBOUNDED)).maximum
