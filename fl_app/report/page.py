"""The report as one HTML file with interactive figures, which needs no other file."""

import json
from collections.abc import Sequence
from pathlib import Path

from fl_app.record.score import LOSS
from fl_app.record.targets import WINDOW
from fl_app.report import figures
from fl_app.report.cells import Cell
from fl_app.report.document import Part, write_document
from fl_app.report.lanes import timeline
from fl_app.report.pictures import MAX_PANELS
from fl_app.report.series import Series, Span, client_metrics, group, seconds, whose
from fl_app.report.setting import setting
from fl_app.report.style import Look, looks
from fl_app.report.table import Table, name

MAX_NAMED = 4  # algorithms in a title
MAX_DEALT = 3  # partitions on a page
MAX_REASONS = 20  # of a cell
MAX_TOLD = 20  # troubles of a cell on a page with several cells
USE = (
    "A click on a name shows it alone, with the shift key together with others. Drag to move, turn "
    "the wheel with the shift key to zoom, double-click for the first view."
)


def write_page(cells: Sequence[Cell], table: Table, path: Path, span: Span | None = None) -> None:
    """Write the report, atomically.

    Args:
        cells: of the run; a single one is described in full, several are compared.
        table: of the cells.
        path: of the file.
        span: start and end of the timelines in seconds; None = as long as a slow client needs to
            train some times.
    """
    series = group(cells)
    drawn = looks([each.algorithm for each in series])
    alone = len(cells) == 1
    parts = [
        *([] if alone else [_numbers(table)]),
        *_scores(series, drawn, table),
        *_who_trains(series, drawn, span),
        *_data([each.cells[0] for each in series]),
    ]
    if alone and cells[0].history.sequences:
        more = [figures.participation(cells[0], drawn[0])]
        if cells[0].reports:
            more.append(figures.reports(cells[0], drawn[0]))
        text = "Orders of each client, and what the strategy reported of its aggregations; of a "
        text += "list of numbers, such as weights, the mean."
        parts.append(Part("Participation and aggregations", [text], figures=more))
    for cell in cells:
        parts += _troubles(cell, None if alone else MAX_TOLD)
    parts += [
        Part(
            f"Summary and configuration: {cell.name}",
            files=[json.dumps(cell.summary, indent=2), cell.config],
            folded=True,
        )
        for cell in cells
    ]
    facts = [*setting(cells), ("state", _state(cells))]
    if alone:
        facts += [("versions", f"{cells[0].history.version:,}"), ("time", seconds(cells[0].until))]
        facts += [(f"{each.group} {each.title}".strip(), each.texts[0]) for each in table.columns()]
    write_document(
        path,
        _title(cells),
        facts,
        parts,
        warnings=_warnings(cells),
        footer="; ".join(dict.fromkeys(filter(None, map(_origin, cells)))),
    )


def _numbers(table: Table) -> Part:
    """The table of the console, with all of its columns."""
    columns = table.columns()
    texts = []
    if table.has("seconds_to_target"):
        target = f"{table.target_accuracy:.0%}"
        texts.append(
            f"First at {target}: seconds and client updates until the first evaluation with at "
            f"least this accuracy. Stays at {target}: until the evaluation from which the mean of "
            f"the last {WINDOW} is never below it."
        )
    if lower := [score.name for score in table.scores if not score.higher_is_better]:
        texts.append(f"Lower values of {' and '.join(lower)} are better.")
    if table.deviation:
        texts.append(f"{table.deviation} They are unknown if one seed never got there.")
    texts += [table.work] * bool(table.work)
    header = ["cell", *(f"{column.group} {column.title}".strip() for column in columns)]
    body = [
        [name(row), *(column.texts[number] for column in columns)]
        for number, row in enumerate(table.shown)
    ]
    return Part("In numbers", texts, header, body)


def _scores(series: Sequence[Series], drawn: Sequence[Look], table: Table) -> list[Part]:
    """Scores over time, of the test set and on the clients, and the ages of the updates."""
    cells = [cell for each in series for cell in each.cells]
    parts = []
    if table.scores:
        metrics = list(dict.fromkeys([*(score.name for score in table.scores), LOSS.name]))
        text = f"{whose(cells).capitalize()} {' and '.join(metrics)} of the global models."
        if any(len(each.cells) > 1 for each in series):
            text += (
                " Lines are means, bands reach from the lowest to the highest of the seeds; both "
                "end where the first seed does, and what the others did then are thin lines."
            )
        drawing = figures.learning(series, drawn, metrics, table.target_accuracy)
        parts.append(Part("Who learns faster", [f"{text} {USE}"], figures=[drawing]))
    if metrics := client_metrics(cells):
        text = (
            "What clients measured of the global model on their own data: the mean weighted by "
            "their examples, with a band to the mean of the worst tenth of them."
        )
        drawing = figures.on_clients(series, drawn, metrics)
        parts.append(Part("On the clients", [text], figures=[drawing]))
    aged = [(each, look) for each, look in zip(series, drawn, strict=True) if each.ages]
    if aged:
        drawing = figures.staleness([each for each, _ in aged], [look for _, look in aged])
        text = "Share of the updates of each age, in versions, when they were aggregated."
        parts.append(Part("How stale the updates are", [text], figures=[drawing]))
    return parts


def _who_trains(series: Sequence[Series], drawn: Sequence[Look], span: Span | None) -> list[Part]:
    active = [
        (each, look)
        for each, look in zip(series, drawn, strict=True)
        if each.cells[0].history.orders
    ]
    shown = active[:MAX_PANELS]
    if not shown:
        return []
    text = "Clients from fast (below) to slow; of several seeds, the first. "
    left_out = len(active) - len(shown)
    if left_out:
        text += f"The other {left_out} cells: python -m fl_app.report FOLDER/CELL. "
    chart = timeline([each for each, _ in shown], [look for _, look in shown], span=span)
    return [Part("Who trains when", [text + USE], figures=[chart])]


def _data(cells: Sequence[Cell]) -> list[Part]:
    """The partitions of the cells, each once."""
    distinct: list[Cell] = []
    for cell in cells:
        if cell.partition and all(cell.partition != each.partition for each in distinct):
            distinct.append(cell)
    if not distinct:
        return []
    text = "Training examples of each class on each client."
    shown = distinct[:MAX_DEALT]
    if len(distinct) > 1:
        text += f" Cells differ; drawn are those of {', '.join(cell.name for cell in shown)}."
    drawing = [figures.partition(cell) for cell in shown]
    return [Part("Who has what", [text], figures=drawing)]


def _troubles(cell: Cell, told: int | None) -> list[Part]:
    """Failures and rejected replies of a cell: how often each occurred, and the latest."""
    if not cell.reasons:
        return []
    counts = [
        (f"{count:,}", kind, reason)
        for (kind, reason), count in cell.reasons.most_common(MAX_REASONS)
    ]
    latest = [
        (
            seconds(each.t),
            each.kind,
            "" if each.client is None else str(each.client),
            "" if each.version is None else str(each.version),
            each.reason,
            "\n".join(each.story),
        )
        for each in list(reversed(cell.troubles))[:told]
    ]
    title = f"Failures and rejected replies: {cell.name}"
    header = ["time", "what", "client", "version", "reason", "what the client did before"]
    return [
        Part(title, ["None of these replies was aggregated."], ["times", "what", "reason"], counts),
        Part(f"The latest of them: {cell.name}", (), header, latest, folded=True),
    ]


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


def _warnings(cells: Sequence[Cell]) -> list[str]:
    made_up = [cell.name for cell in cells if cell.summary.get("data") == "stand-in"]
    collapsed = [cell.name for cell in cells if cell.summary.get("collapsed")]
    warnings = []
    if made_up:
        warnings.append(f"Not the real data but a stand-in: {', '.join(made_up)}.")
    if collapsed:
        warnings.append(
            f"Collapsed: the model nearly always predicts the same class: {', '.join(collapsed)}."
        )
    return warnings


def _state(cells: Sequence[Cell]) -> str:
    """How the runs ended, in words."""
    ends = {cell.summary.get("stopped") for cell in cells}
    if None in ends:
        return "no summary: still running, or killed"
    return ", ".join(sorted(f"ended by {end}" if " " not in str(end) else str(end) for end in ends))


def _origin(cell: Cell) -> str:
    """Software and date of a cell; empty if they are unknown."""
    summary = cell.summary
    if not summary.get("version"):
        return ""
    commit = f", commit {summary['commit'][:9]}" if summary.get("commit") else ""
    changed = " with uncommitted changes" if summary.get("uncommitted_changes") else ""
    return f"fl-app {summary['version']}{commit}{changed}, {str(summary.get('date'))[:10]}"
