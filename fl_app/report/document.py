"""A page of sections with texts, tables and interactive figures, in the style of the report."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fl_app.core.files import atomic_write
from fl_app.report.charts import Figure
from fl_app.report.page import CONFIG, drawn_as_json
from fl_app.report.style import IN_THE_DARK
from fl_app.report.template import FOOT, HEAD

_DOCUMENT = (
    HEAD
    + """\
{% for part, numbers in parts %}
<section>
<h2>{{ part.title }}</h2>
{% for text in part.texts %}
<p>{{ text }}</p>
{% endfor %}
{% if part.rows %}
<div class="scroll">
<table class="cells">
<tr>{% for title in part.header %}<th{% if loop.first %} class="text"{% endif %}>{{ title }}</th>
{% endfor %}</tr>
{% for row in part.rows %}
<tr>{% for text in row %}<td{% if loop.first %} class="text"{% endif %}>{{ text }}</td>
{% endfor %}</tr>
{% endfor %}
</table>
</div>
{% endif %}
<div class="figures{{ ' wide' if part.wide }}">
{% for number in numbers %}
<div class="figure" id="figure-{{ number }}"></div>
{% endfor %}
</div>
</section>
{% endfor %}
"""
    + FOOT
)


@dataclass(frozen=True)
class Part:
    """A section of the page.

    Attributes:
        title: of the section.
        texts: its paragraphs.
        header: titles of the table's columns.
        rows: texts of the table; the first column is aligned to the left.
        figures: below the table.
        wide: whether figures stand below each other, and not side by side.
    """

    title: str
    texts: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figures: Sequence[Figure] = ()
    wide: bool = False


def write_document(
    path: Path, title: str, facts: Sequence[tuple[str, str]], parts: Sequence[Part]
) -> None:
    """Write the page as one file that needs no other, atomically.

    Args:
        path: of the file.
        title: of the page.
        facts: names and values below the title.
        parts: its sections.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    number = count()
    text = environment.from_string(_DOCUMENT).render(
        title=title,
        facts=facts,
        status="",
        refresh=None,
        library=None,
        parts=[(part, [next(number) for _ in part.figures]) for part in parts],
        plotly=Markup(get_plotlyjs()),
        figures=drawn_as_json([figure for part in parts for figure in part.figures]),
        config=Markup(json.dumps(CONFIG)),
        dark=Markup(json.dumps(IN_THE_DARK)),
    )
    with atomic_write(path) as file:
        file.write(text.encode())
