"""A page of sections with texts, tables and figures: one file, which needs no other and no network.

The template is Python, and not a file of its own, since the bundle in which ``flwr run`` carries an
app to the server leaves out every file type that could hold it.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path

import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fl_app.core.files import atomic_write, cache_folder
from fl_app.report.figures import Chart, specification

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
{% for text in warnings %}
<div class="warning">{{ text }}</div>
{% endfor %}
{% for part, numbers in parts %}
<section>
{% if part.folded %}
<details><summary><h2>{{ part.title }}</h2></summary>
{% else %}
<h2>{{ part.title }}</h2>
{% endif %}
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
{% for number in numbers %}
<div class="wide"><div class="figure" id="figure-{{ number }}"></div></div>
{% endfor %}
{% for text in part.files %}
<pre>{{ text }}</pre>
{% endfor %}
{% if part.folded %}</details>{% endif %}
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


# Vega draws the figures, on canvases, which stay quick with thousands of orders. Of its menu, what
# works without a network is left: pictures to save.
_DRAW = """\
const figures = JSON.parse(document.getElementById("figures").textContent);
const actions = { export: true, source: false, compiled: false, editor: false };
figures.forEach((figure, number) =>
  vegaEmbed(`#figure-${number}`, figure, { actions, renderer: "canvas" }));
"""


@dataclass(frozen=True)
class Part:
    """A section of the page.

    Attributes:
        title: of the section.
        texts: its paragraphs.
        header: titles of the table's columns.
        rows: texts of the table.
        figures: below the table.
        files: texts of files, below the figures.
        folded: whether a click on the title shows it.
    """

    title: str
    texts: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figures: Sequence[Chart] = ()
    files: Sequence[str] = ()
    folded: bool = False


def write_document(
    path: Path,
    title: str,
    facts: Sequence[tuple[str, str]],
    parts: Sequence[Part],
    *,
    warnings: Sequence[str] = (),
    footer: str = "",
) -> None:
    """Write the page, atomically.

    Args:
        path: of the file.
        title: of the page.
        facts: names and values below the title.
        parts: its sections.
        warnings: on top of the sections.
        footer: below them.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    number = count()
    figures = [specification(figure) for part in parts for figure in part.figures]
    drawn = json.dumps(figures, separators=(",", ":"))
    text = environment.from_string(_TEMPLATE).render(
        title=title,
        facts=facts,
        warnings=warnings,
        parts=[(part, [next(number) for _ in part.figures]) for part in parts],
        footer=footer,
        figures=Markup(drawn.replace("<", "\\u003c")),  # nothing in it ends the script
        library=Markup(_vega()),
        draw=Markup(_DRAW),
    )
    with atomic_write(path) as file:
        file.write(text.encode())


def _vega() -> str:
    """The library that draws in a browser; to put it together takes seconds, so it is kept."""
    path = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError):
        return path.read_text(encoding="utf-8")
    library: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with suppress(OSError):  # a cache that cannot be written to only costs time
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, aside=f".{os.getpid()}") as file:
            file.write(library.encode())
    return library
