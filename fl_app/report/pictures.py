"""The pictures of a run, as files: the figures of its page in their first view."""

import io
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from PIL import Image

from fl_app.record.score import ACCURACY
from fl_app.report.cells import Cell, scores_of
from fl_app.report.figures import Chart, apart, learning, on_clients, specification, staleness
from fl_app.report.lanes import timeline
from fl_app.report.series import client_metrics, group, learning_phase
from fl_app.report.style import looks

MAX_PANELS = 8  # series with staleness and timeline in the overview
AGES = "How stale the updates are: share of each age (versions) when aggregated"


def png(spec: dict[str, Any]) -> bytes:
    """A picture of 256 colours, which takes a third of the bytes."""
    picture = Image.open(io.BytesIO(vl_convert.vegalite_to_png(spec, scale=1.6)))
    file = io.BytesIO()
    few = picture.convert("RGB").quantize(method=Image.Quantize.FASTOCTREE)
    few.save(file, format="png")
    return file.getvalue()


def save(chart: Chart, path: Path, formats: Collection[str] = ()) -> None:
    """Write a figure as PNG, and in further formats.

    Args:
        chart: to write.
        path: of the PNG; its folder is created.
        formats: of `FORMATS`, of files beside it; those that are there are written anew anyway.
    """
    path.parent.mkdir(exist_ok=True)
    spec = specification(chart)
    for suffix, convert in FORMATS.items():
        file = path.with_suffix(f".{suffix}")
        if suffix == "png" or suffix in formats or file.exists():
            file.write_bytes(convert(spec))


FORMATS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "png": png,
    "pdf": lambda spec: vl_convert.vegalite_to_pdf(spec),
    "svg": lambda spec: vl_convert.vegalite_to_svg(spec).encode(),
}


def write_figures(
    cells: Sequence[Cell], target: float, folder: Path, formats: Collection[str] = ()
) -> None:
    """Write the pictures of a run: of its scores, clients, staleness and timeline, and all in one.

    Args:
        cells: of the run, in the order of legends and panels.
        target: accuracy to which times are measured, in (0, 1].
        folder: created if it does not exist.
        formats: as of `save`.
    """
    series = group(cells)
    drawn = looks([each.algorithm for each in series])
    some, known = series[:MAX_PANELS], drawn[:MAX_PANELS]
    left: list[Chart] = []
    for score in scores_of(cells):
        until = learning_phase(series, target) if score == ACCURACY else None
        chart = learning(series, drawn, [score.name], target, width=520, until=until)
        left.append(_titled(chart, "Who learns faster"))
        save(left[-1], folder / f"{score.name}.png", formats)
    for metric in client_metrics(cells)[:1]:
        left.append(_titled(on_clients(series, drawn, [metric], width=520), "On the clients"))
        save(left[-1], folder / "clients.png", formats)
    stale = _titled(staleness(some, known, columns=2, width=235), AGES)
    save(_titled(staleness(series, drawn), AGES), folder / "staleness.png", formats)
    every = _titled(timeline(series, drawn, whole=False), "Who trains when")
    save(every, folder / "timeline.png", formats)
    few = timeline(some, known, max_clients=12, whole=False, width=640)
    first = apart(alt.vconcat(*left[:1], stale, spacing=30))
    both = alt.hconcat(first, _titled(few, "Why: who trains when"), spacing=40)
    save(apart(both), folder / "overview.png", formats)


def _titled(chart: Chart, title: str) -> Chart:
    return chart.properties(title=title)
