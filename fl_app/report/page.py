"""The report as one HTML file with interactive figures; it needs no other file and no network.

The template is a Python string, since the bundle in which ``flwr run`` sends an app to the server
leaves out every file type that could hold it.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fl_app.core.files import cache_folder, write_text
from fl_app.core.score import ACCURACY, LOSS
from fl_app.record.summary import WINDOW, trouble_message
from fl_app.report import figures
from fl_app.report.cells import RUNNING, Cell, group, headline, scores_of
from fl_app.report.figures import Chart, independent, save, seconds, specification
from fl_app.report.lanes import timeline
from fl_app.report.table import Table

MAX_LISTED = 4  # algorithms in a title, and values of a setting; more are counted
MAX_REASONS = 20  # of a cell
MAX_PANELS = 8  # timelines
USE = (
    "A click on a name shows it alone, with the shift key together with others. Drag to move, turn "
    "the wheel with the shift key to zoom, double-click for the first view."
)
AGES = "How stale the updates are: share of each age (versions) when aggregated"

_TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>
body { margin: 0; background: #f6f7f8; color: #222; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 16px 12px 60px; overflow-wrap: anywhere; }
h1 { font-size: 26px; line-height: 1.2; margin: 8px 0; }
h2 { font-size: 18px; margin: 0; display: inline; }
p { margin: 2px 0 8px; color: #555; }
dl { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 10px 0; }
dt { color: #555; font-size: 12px; }
dd { margin: 0; }
section, .warning { background: white; border: 1px solid #e2e4e6; border-radius: 8px;
  padding: 14px 18px; margin-top: 14px; }
.warning { border-color: #d55e00; border-left-width: 6px; }
.wide { overflow-x: auto; }
.figure { padding-right: 30px; }
.vega-bind { margin-right: 14px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th { font-weight: 500; color: #555; vertical-align: bottom; border-bottom: 1px solid #888; }
td { vertical-align: top; border-bottom: 1px solid #eee; white-space: pre-line; }
th, td { padding: 4px 8px; text-align: left; }
td.number { text-align: right; white-space: nowrap; }
td:first-child { min-width: 130px; }
summary { cursor: pointer; }
pre { background: #f6f7f8; padding: 10px 12px; overflow: auto; max-height: 460px; font-size: 12px; }
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<dl>
{% for label, text in facts %}
<div><dt>{{ label }}</dt><dd>{{ text }}</dd></div>
{% endfor %}
</dl>
{% if trouble %}
<div class="warning">{{ trouble }}</div>
{% endif %}
{% for part in parts %}
<section>
<h2>{{ part.title }}</h2>
{% for text in part.texts %}
<p>{{ text }}</p>
{% endfor %}
{% if part.rows %}
<div class="wide"><table>
<tr>{% for title in part.header %}<th>{{ title }}</th>{% endfor %}</tr>
{% for row in part.rows %}
<tr>{% for text in row %}
<td{% if text[:1] in "-0123456789" %} class="number"{% endif %}>{{ text }}</td>
{% endfor %}</tr>
{% endfor %}
</table></div>
{% endif %}
{% if part.name %}
<div class="wide"><div class="figure" id="figure-{{ part.name }}"></div></div>
{% endif %}
</section>
{% endfor %}
{% for cell in cells %}
<section>
<details><summary><h2>Summary and configuration: {{ cell.name }}</h2></summary>
<pre>{{ dumps(cell.summary, indent=2) }}</pre>
<pre>{{ cell.config }}</pre>
</details>
</section>
{% endfor %}
<p>{{ footer }}</p>
</main>
<script type="application/json" id="figures">{{ figures }}</script>
<script>{{ library }}</script>
<script>{{ draw }}</script>
</body>
</html>
"""

# Vega draws on canvases, which stay quick with thousands of orders. Its menu only saves pictures,
# since the other entries need a network.
_DRAW = """\
const figures = JSON.parse(document.getElementById("figures").textContent);
const actions = { export: true, source: false, compiled: false, editor: false };
for (const name in figures) {
  const place = document.getElementById(`figure-${name}`);
  vegaEmbed(place, figures[name], { actions, renderer: "canvas" });
}
"""


class Part(NamedTuple):
    """A section of the page.

    Attributes:
        title: of the section.
        texts: its paragraphs.
        header: titles of the table's columns.
        rows: texts of the table.
        name: of the figure below the table; empty if there is none.
        figure: the figure.
    """

    title: str
    texts: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    name: str = ""
    figure: Chart = None


def write_page(cells: Sequence[Cell], table: Table, path: Path) -> dict[str, Chart]:
    """Write the report, atomically.

    Args:
        cells: of the run; a single one is described in full, several are compared.
        table: of the cells.
        path: of the file.

    Returns:
        The figures by name.
    """
    single = len(cells) == 1
    parts = [*([] if single else [_numbers(table)]), *_figures(cells, table)]
    for cell in cells:
        parts += _troubles(cell)
    facts = _setting(cells)
    if single:
        facts += [
            ("versions", f"{cells[0].history.version:,}"),
            ("time", seconds(cells[0].until)),
            *((f"{c.group} {c.title}".strip(), c.texts[0]) for c in table.columns()),
        ]
    charts = {part.name: part.figure for part in parts if part.name}
    specifications = {name: specification(chart) for name, chart in charts.items()}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.from_string(_TEMPLATE).render(
        title=_title(cells),
        facts=facts,
        trouble=trouble_message({cell.name: cell.summary for cell in cells}),
        parts=parts,
        cells=cells,
        dumps=json.dumps,
        footer="; ".join(dict.fromkeys(filter(None, map(_origin, cells)))),
        # Nothing in it ends the script.
        figures=Markup(json.dumps(specifications, separators=(",", ":")).replace("<", "\\u003c")),
        library=Markup(_vega()),
        draw=Markup(_DRAW),
    )
    write_text(path, text)
    return charts


def write_figures(
    cells: Sequence[Cell],
    target: float,
    charts: Mapping[str, Chart],
    folder: Path,
    *,
    pdf: bool,
) -> None:
    """Write the figures of a page as pictures, with the most important ones in ``overview``.

    Args:
        cells: of the run.
        target: accuracy to which times are measured, in (0, 1].
        charts: as of `write_page`.
        folder: created if it does not exist.
        pdf: as of `fl_app.report.figures.save`.
    """
    for name, chart in charts.items():
        save(chart, folder / f"{name}.png", pdf=pdf)
    everyone = [member for member in group(cells) if member.cells[0].history.orders]
    if not everyone:
        return
    series = everyone[:MAX_PANELS]
    some = f" ({MAX_PANELS} of {len(everyone)} cells)" * (len(everyone) > MAX_PANELS)
    metrics = [score.name for score in scores_of(cells)][:1]
    column = [figures.staleness(series, columns=2, width=235).properties(title=AGES + some)]
    if metrics:
        curves = figures.learning(everyone, metrics, target, width=520)
        column.insert(0, curves.properties(title="Who learns faster"))
    timelines = timeline(series, max_clients=12, width=640)
    timelines = timelines.properties(title="Why: who trains when" + some)
    overview = alt.hconcat(independent(alt.vconcat(*column, spacing=30)), timelines, spacing=40)
    save(independent(overview), folder / "overview.png", pdf=pdf)


def _numbers(table: Table) -> Part:
    """The table that the console shows, with all columns."""
    columns = table.columns()
    texts = []
    if ACCURACY in table.scores:
        target = f"{table.target_accuracy:.0%}"
        texts.append(
            f"First at {target}: seconds and client updates until the first evaluation with at "
            f"least this accuracy. Stays at {target}: until the evaluation from which the mean of "
            f"the last {WINDOW} is never below it."
        )
    if lower := [score.name for score in table.scores if not score.higher_is_better]:
        texts.append(f"Lower values of {' and '.join(lower)} are better.")
    if table.deviation:
        texts.append(f"{table.deviation} They are unknown if a seed has no value.")
    texts += [table.work] * bool(table.work)
    header = ["cell", *(f"{column.group} {column.title}".strip() for column in columns)]
    rows = zip(table.names, *(column.texts for column in columns), strict=True)
    return Part("In numbers", texts, header, [*rows])


def _figures(cells: Sequence[Cell], table: Table) -> list[Part]:
    """Curves of scores, on the server and on clients; ages of updates, timelines, partitions."""
    series = group(cells)
    target = table.target_accuracy
    parts = []
    if table.scores:
        metrics = list(dict.fromkeys([*(score.name for score in table.scores), LOSS.name]))
        on_server = any(cell.history.server_evaluations for cell in cells)
        owner = "Test" if on_server else "Clients'"
        text = f"{owner} {' and '.join(metrics)} of the global models. "
        if any(len(member.cells) > 1 for member in series):
            text += "Line: mean over the seeds. Band: lowest and highest seed. "
        chart = figures.learning(series, metrics, target)
        parts.append(Part("Who learns faster", [text + USE], name=metrics[0], figure=chart))
    if metrics := figures.client_metrics(cells):
        text = (
            "Metrics of the global model on the clients' own data: the mean weighted by "
            "their examples, with a band to the mean of the worst tenth of them."
        )
        chart = figures.learning(series, metrics, target, on_clients=True)
        parts.append(Part("On the clients", [text], name="clients", figure=chart))
    if with_ages := [member for member in series if member.ages]:
        text = "Share of the updates of each age, in versions, when they were aggregated."
        chart = figures.staleness(with_ages)
        parts.append(Part("How stale the updates are", [text], name="staleness", figure=chart))
    if with_orders := [member for member in series if member.cells[0].history.orders]:
        text = "Clients from fast (below) to slow; of several seeds, the first. "
        if num_hidden := len(with_orders[MAX_PANELS:]):
            text += f"The other {num_hidden} cells: python -m fl_app.report FOLDER/CELL. "
        chart = timeline(with_orders[:MAX_PANELS])
        parts.append(Part("Who trains when", [text + USE], name="timeline", figure=chart))
    if with_partition := [cell for cell in cells if cell.partition]:
        text = "Training examples of each class on each client."
        if len({cell.partition for cell in with_partition}) > 1:
            text += f" Cells differ; the figure shows {with_partition[0].name}."
        chart = figures.partition(with_partition[0])
        parts.append(Part("Who has what", [text], name="partition", figure=chart))
    return parts


def _troubles(cell: Cell) -> list[Part]:
    """Failures and rejected replies of a cell: how often each occurred, and where last."""
    troubles = cell.history.troubles
    if not troubles:
        return []
    kinds = [(trouble.kind, headline(trouble.reason)) for trouble in troubles]
    last = dict(zip(kinds, troubles, strict=True))
    rows = []
    for kind, number in Counter(kinds).most_common(MAX_REASONS):
        event = last[kind]
        client = "" if event.client is None else str(event.client)
        rows.append((f"{number:,}", event.kind, seconds(event.t), client, event.reason))
    title = f"Failures and rejected replies: {cell.name}"
    header = ["times", "what", "last at", "on client", "reason"]
    return [Part(title, ["None of these replies was aggregated."], header, rows)]


def _title(cells: Sequence[Cell]) -> str:
    """Experiment, cell or algorithms, and tasks."""
    algorithms = list(dict.fromkeys(cell.algorithm for cell in cells))
    few = len(algorithms) <= MAX_LISTED
    listed = ", ".join(algorithms) if few else f"{len(algorithms)} algorithms"
    name = cells[0].name if len(cells) == 1 else cells[0].get("experiment.name") or listed
    tasks = list(dict.fromkeys(cell.task for cell in cells if cell.task))
    return f"{name} on {', '.join(tasks)}" if tasks else name


def _setting(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """What ran and how it ended, for the head of the page; unknown values are left out."""
    real = any(cell.on_wall_clock for cell in cells)
    ends = {cell.stopped for cell in cells}
    facts: dict[str, Iterable[Any]] = {
        "data": [cell.task for cell in cells],
        "model": [cell.get("task.model") for cell in cells],
        "clients": [cell.get("num_clients") for cell in cells],
        "at work": [cell.get("algorithm.schedule.concurrency") for cell in cells],
        "partition": [_kind(cell, "partition") for cell in cells],
        "devices": ["real"] if real else [_kind(cell, "devices") for cell in cells],
        "network": [_kind(cell, "devices.network") for cell in cells],
        "seeds": [cell.seed for cell in cells],
        "state": [RUNNING] if "" in ends else sorted(f"ended by {end}" for end in ends),
    }
    return [(label, text) for label, values in facts.items() if (text := _values(values))]


def _kind(cell: Cell, key: str) -> str:
    """The class that a configuration names, with its numbers and texts."""
    node = cell.get(key)
    if not isinstance(node, dict) or not node.get("_target_"):
        return ""
    args = [f"{k} {v}" for k, v in node.items() if k[0] != "_" and isinstance(v, int | float | str)]
    name = node["_target_"].rpartition(".")[2]
    return f"{name} ({', '.join(args)})" if args else name


def _values(values: Iterable[Any]) -> str:
    """The distinct values as a text."""
    texts = dict.fromkeys(str(value) for value in values if value not in (None, ""))
    if len(texts) <= MAX_LISTED:
        return ", ".join(texts)
    first, *_, last = texts
    return f"{len(texts)} values, {first} to {last}"


def _origin(cell: Cell) -> str:
    """Software and date of a cell; empty if they are unknown."""
    summary = cell.summary
    if not summary.get("version"):
        return ""
    commit = f", commit {summary['commit'][:9]}" if summary.get("commit") else ""
    changes = " with uncommitted changes" if summary.get("uncommitted_changes") else ""
    return f"fl-app {summary['version']}{commit}{changes}, {str(summary.get('date'))[:10]}"


def _vega() -> str:
    """The library that draws in a browser; it is cached, since building it takes seconds."""
    path = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError):
        return path.read_text(encoding="utf-8")
    library: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with suppress(OSError):  # a cache that cannot be written to only costs time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, library, aside=f".{os.getpid()}")
    return library
