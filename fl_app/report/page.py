"""The report as one HTML file with interactive figures, which needs no other file."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from plotly.utils import PlotlyJSONEncoder

from fl_app.core.files import atomic_write
from fl_app.record.score import ACCURACY, LOSS
from fl_app.record.targets import WINDOW
from fl_app.report import plots
from fl_app.report.cells import Cell
from fl_app.report.charts import Figure
from fl_app.report.gantt import ROOMY, timeline_of
from fl_app.report.series import Series, client_metrics, group, seconds, whose, window
from fl_app.report.setting import setting
from fl_app.report.style import IN_THE_DARK, Look, looks
from fl_app.report.table import Row, Table
from fl_app.report.template import PAGE
from fl_app.report.tiles import tiles_of
from fl_app.report.timeline import MAX_ORDERS, Timeline, timeline

LIBRARY = "plotly.min.js"
MAX_NAMED = 4  # algorithms in a title
MAX_TIMELINES = 8  # on a page that compares series
MAX_DEALT = 3  # partitions on it
MAX_REASONS = 20  # of a cell
MAX_TOLD = 20  # troubles of a cell on a page with several cells

_BUTTONS = ["select2d", "lasso2d", "autoScale2d"]
CONFIG = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": _BUTTONS}


class Column(NamedTuple):
    """A column of the table: a field of the rows.

    Attributes:
        key: of the field.
        form: its format.
        above: first line of the title; ``{score}`` and ``{target}`` are filled in.
        below: second line of the title.
        spread: whether the spread over seeds is shown.
    """

    key: str
    form: str
    above: str
    below: str
    spread: bool = False


_COLUMNS = (
    Column("final_score", "", "final", "{score}", True),
    Column("best_score", "", "best", "{score}", True),
    Column("last10_score", "", "mean of last 10", "{score}", True),
    Column("seconds_to_target", "{:,.1f}", "first at", "{target}, s", True),
    Column("updates_to_target", "{:,.0f}", "", "updates", True),
    Column("seconds_to_stay_at_target", "{:,.1f}", "stays at", "{target}, s", True),
    Column("updates_to_stay_at_target", "{:,.0f}", "", "updates", True),
    Column("mean_staleness", "{:.1f}", "mean", "staleness", True),
    Column("max_staleness", "{:.0f}", "", "max"),
    Column("mb_down", "{:,.1f}", "MB", "down"),
    Column("mb_up", "{:,.1f}", "MB", "up"),
    Column("client_updates", "{:,.0f}", "client", "updates"),
    Column("at_work", "{:,.0f}", "clients", "at work"),
    Column("work_per_update", "{}", "work per", "update"),
    Column("failures", "{:,.0f}", "", "failures"),
    Column("rejected", "{:,.0f}", "", "rejected"),
)


@dataclass(frozen=True)
class Section:
    """A part of the page, with its figures side by side or, if wide, below each other."""

    title: str
    text: str
    figures: Sequence[Figure]
    wide: bool = False


def write_page(
    cells: Sequence[Cell],
    table: Table,
    path: Path,
    *,
    span: tuple[float, float] | None = None,
    refresh: float | None = None,
    shared: Path | None = None,
) -> None:
    """Write the report, atomically.

    Args:
        cells: of the run; a single one is described in full, several are compared.
        table: of the cells.
        path: of the file.
        span: start and end of the timelines in seconds; None = as much as a browser draws quickly.
        refresh: seconds after which a browser reloads the page; None = never.
        shared: folder for a copy of the plotting library that pages load; None = the page contains
            the library.
    """
    library = None
    if shared is not None:
        file = shared / LIBRARY
        if not file.is_file():
            _replace(file, get_plotlyjs())
        library = quote(Path(os.path.relpath(file.resolve(), path.parent.resolve())).as_posix())
    text = render(cells, table, span=span, refresh=refresh, library=library)
    _replace(path, text)


def _replace(path: Path, text: str) -> None:
    """Write a file atomically, also if another process writes it at the same time."""
    with atomic_write(path, aside=f".{os.getpid()}") as file:
        file.write(text.encode())


def render(
    cells: Sequence[Cell],
    table: Table,
    *,
    span: tuple[float, float] | None = None,
    refresh: float | None = None,
    library: str | None = None,
) -> str:
    """The HTML of the page; `library` is the plotting library's address, None = in the page."""
    series = group(cells)
    drawn = looks([each.algorithm for each in series])
    alone = len(cells) == 1
    many = any(row.statistic == "mean" for row in table.rows)
    told = None if alone else MAX_TOLD
    if alone:
        sections = _of_run(cells[0], series[0], drawn[0], table, span)
    else:
        sections = _of_comparison(series, drawn, table, span)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=_number, seconds=seconds)
    number = count()
    target = f"{table.target_accuracy:.0%}"
    return environment.from_string(PAGE).render(
        title=_title(cells),
        facts=setting(cells),
        origins=list(dict.fromkeys(filter(None, map(_origin, cells)))),
        refresh=refresh,
        library=library,
        plotly=Markup("" if library else get_plotlyjs()),
        status=_status(cells),
        made_up=[cell.name for cell in cells if cell.summary.get("data") == "stand-in"],
        collapsed=[cell.name for cell in cells if cell.summary.get("collapsed")],
        tiles=tiles_of(cells[0], table) if alone else [],
        window=WINDOW,
        target=target if table.has("seconds_to_target") else "",
        direction=_direction(table),
        rows=[] if alone else table.of_series(),
        seeds=[(row, None) for row in table.rows if row.statistic == "run"] if many else [],
        deviation=table.deviation,
        work=table.work,
        columns=[
            column._replace(below=column.below.format(score=table.score_name, target=target))
            for column in _COLUMNS
            if table.has(column.key)
        ],
        sections=[(section, [next(number) for _ in section.figures]) for section in sections],
        figures=drawn_as_json([figure for section in sections for figure in section.figures]),
        config=Markup(json.dumps(CONFIG)),
        dark=Markup(json.dumps(IN_THE_DARK)),
        troubled=[
            (cell, cell.reasons.most_common(MAX_REASONS), list(reversed(cell.troubles))[:told])
            for cell in cells
            if cell.reasons
        ],
        cells=[(cell, json.dumps(cell.summary, indent=2)) for cell in cells],
    )


def _of_run(
    cell: Cell, series: Series, look: Look, table: Table, span: tuple[float, float] | None
) -> list[Section]:
    sections = []
    if cell.evaluations:
        text = f"{_tested(table, [cell])} of the global model."
        sections.append(Section("Learning", text, _curves([series], [look], table)))
    sections += _of_clients([series], [look])
    sections += _of_data([cell])
    if cell.history.orders:
        shown = timeline(cell, span)
        figure = timeline_of(cell, shown, look, window([cell], ROOMY))
        sections.append(Section("Who trained when", _words(cell, shown), [figure], wide=True))
        who = [plots.participation(cell, look)]
        if cell.history.ages:
            who.insert(0, plots.staleness([series], [look]))
        text = "How old updates were when they were aggregated, and whose they were."
        sections.append(Section("Staleness and participation", text, who))
    more = []
    if len(cell.metrics.get("bytes_up", [])) > 1:
        more.append(plots.traffic(cell, look))
    if cell.reports:
        more.append(plots.reports(cell, look))
    if more:
        text = "Bytes over time, and what the strategy reported of its aggregations; of a list of "
        text += "numbers, such as weights, the mean."
        sections.append(Section("Traffic and aggregations", text, more))
    return sections


def _of_comparison(
    series: Sequence[Series],
    drawn: Sequence[Look],
    table: Table,
    span: tuple[float, float] | None,
) -> list[Section]:
    seeds = any(len(each.cells) > 1 for each in series)
    sections = []
    if any(cell.evaluations for each in series for cell in each.cells):
        text = f"{_tested(table, [c for each in series for c in each.cells])} of the global models."
        if seeds:
            text += (
                " Lines are means, bands reach from the lowest to the highest of the seeds; both "
            )
            text += "end where the first seed does, and what the others did then are thin lines."
        text += " A click on a name hides its line, a double-click all others."
        sections.append(Section("Who learns faster", text, _curves(series, drawn, table), True))
        text = f"{_names(table).capitalize()} of the last evaluation"
        text += ": diamonds are means, bars standard deviations, circles seeds." if seeds else "."
        last = [plots.final(table, series, drawn, score) for score in table.scores]
        sections.append(Section("Where it ends", text, last, True))
    sections += _of_clients(series, drawn)
    if any(each.ages for each in series):
        text = "Share of the aggregated updates of at most this age."
        sections.append(Section("Staleness", text, [plots.staleness(series, drawn)], True))
    first = [each.cells[0] for each in series]
    sections += _of_data(first)
    active = [(cell, look) for cell, look in zip(first, drawn, strict=True) if cell.history.orders]
    for number, (cell, look) in enumerate(active[:MAX_TIMELINES], start=1):
        some = min(len(active), MAX_TIMELINES)
        shown = timeline(cell, span, max_clients=30, max_orders=MAX_ORDERS // some)
        text = _words(cell, shown)
        if number < len(active) and number == MAX_TIMELINES:
            text += f" The other {len(active) - number}: python -m fl_app.report FOLDER/CELL."
        figure = timeline_of(cell, shown, look, window(first, ROOMY))
        sections.append(Section(f"Who trained when: {cell.name}", text, [figure], wide=True))
    return sections


def _of_clients(series: Sequence[Series], drawn: Sequence[Look]) -> list[Section]:
    """What clients measured, if they did."""
    metrics = client_metrics([cell for each in series for cell in each.cells])
    if not metrics:
        return []
    text = (
        "What clients measured of the global model on their own data: the mean weighted by their "
        "examples, with a band to the worst decile, the mean of the worst tenth of them."
    )
    some = [
        (each, look)
        for each, look in zip(series, drawn, strict=True)
        if any(cell.on_clients for cell in each.cells)
    ]
    chosen, looks_of = [each for each, _ in some], [look for _, look in some]
    figures = [plots.on_clients(chosen, looks_of, metric) for metric in metrics]
    return [Section("On the clients", text, figures, len(series) > 1)]


def _of_data(cells: Sequence[Cell]) -> list[Section]:
    """The partitions of the cells, each once."""
    distinct: list[Cell] = []
    for cell in cells:
        if cell.partition and all(cell.partition != each.partition for each in distinct):
            distinct.append(cell)
    text = "Training examples of each class on each client."
    if len(distinct) > 1:
        text += (
            f" Cells differ; drawn are those of {', '.join(c.name for c in distinct[:MAX_DEALT])}."
        )
    figures = [plots.partition(cell) for cell in distinct[:MAX_DEALT]]
    return [Section("Who has what", text, figures, wide=True)] if figures else []


def _curves(series: Sequence[Series], drawn: Sequence[Look], table: Table) -> list[Figure]:
    figures = []
    for score in table.scores:
        target = table.target_accuracy if score == ACCURACY else None
        figures.append(plots.learning(series, drawn, score.name, target))
    return (
        [*figures, plots.learning(series, drawn, "loss")] if LOSS not in table.scores else figures
    )


def _names(table: Table) -> str:
    return " and ".join(score.name for score in table.scores)


def _tested(table: Table, cells: Sequence[Cell]) -> str:
    """The first words of a sentence on the metrics that are drawn."""
    names = dict.fromkeys([*(score.name for score in table.scores), "loss"])
    return f"{whose(cells).capitalize()} {' and '.join(names)}"


def _direction(table: Table) -> str:
    """A sentence on scores of which lower values are better."""
    lower = [score.name for score in table.scores if not score.higher_is_better]
    return f"Lower values of {' and '.join(lower)} are better." if lower else ""


def _words(cell: Cell, shown: Timeline) -> str:
    """A sentence on what a timeline shows and leaves out."""
    text = f"All {shown.num_clients:,} clients, from fast (below) to slow"
    if len(shown.clients) < shown.num_clients:
        text = (
            f"{len(shown.clients)} of {shown.num_clients:,} clients, evenly spread from fast "
            "(below) to slow"
        )
    text += f", {len(shown.orders):,} of their orders" if not shown.whole else ""
    text += f", {seconds(shown.since)} to {seconds(shown.until)}"
    if not shown.whole:
        text += f" of {seconds(cell.history.t)}; --span FROM TO shows another part"
    return text + ". Drag to zoom; double-click shows all of it."


def _title(cells: Sequence[Cell]) -> str:
    """Experiment, cell or algorithms, and tasks."""
    algorithms = list(dict.fromkeys(cell.algorithm for cell in cells))
    if len(cells) == 1:
        what = cells[0].name
    elif cells[0].experiment:
        what = cells[0].experiment
    elif len(algorithms) <= MAX_NAMED:
        what = ", ".join(algorithms)
    else:
        what = f"{len(algorithms)} algorithms"
    tasks = list(dict.fromkeys(cell.task for cell in cells if cell.task))
    return f"{what} on {', '.join(tasks)}" if tasks else what


def _origin(cell: Cell) -> str:
    """Software and date of a cell; empty if they are unknown."""
    summary = cell.summary
    if not summary.get("version"):
        return ""
    commit = f", commit {summary['commit'][:9]}" if summary.get("commit") else ""
    changed = " with uncommitted changes" if summary.get("uncommitted_changes") else ""
    return f"fl-app {summary['version']}{commit}{changed}, {str(summary.get('date'))[:10]}"


def _status(cells: Sequence[Cell]) -> str:
    """The state of the run in words."""
    ends = {cell.summary.get("stopped") for cell in cells}
    if None in ends:
        return "no summary: still running, or killed"
    return ", ".join(sorted(f"ended by {end}" if " " not in str(end) else str(end) for end in ends))


def _number(row: Row, spread: Row | None, column: Column) -> Markup:
    """A number of a row with its standard deviation."""
    value, form = getattr(row, column.key), row.form(column.key, column.form)
    if value is None:
        return Markup("&ndash;")
    deviation = None if spread is None else getattr(spread, column.key)
    if deviation is None:
        return Markup.escape(form.format(value))
    text = form.format(deviation).rstrip("%")
    return Markup("{} <small>&plusmn;&thinsp;{}</small>").format(form.format(value), text)


def drawn_as_json(figures: Sequence[Figure]) -> Markup:
    """The figures as JSON that cannot end the surrounding script element."""
    text = json.dumps(figures, cls=PlotlyJSONEncoder, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
