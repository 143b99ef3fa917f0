"""Curves of runs, as a figure that a notebook shows."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import pandas as pd

from fl_app.report.cells import Cell, group, scores_of
from fl_app.report.figures import Chart, independent, learning, png, specification


@dataclass(frozen=True)
class Plot:
    """A figure that notebooks show as a picture, without a network.

    Attributes:
        chart: of Altair, for those who change or save it.
    """

    chart: Chart

    def _repr_png_(self) -> bytes:
        return png(specification(self.chart))

    def html(self) -> str:
        """The picture as an element of a page."""
        return f'<img src="data:image/png;base64,{b64encode(self._repr_png_()).decode()}">'


def plot(cells: Sequence[Cell], target: float) -> Plot:
    """The score over time, seeds as a band; where cells differ, a panel for each score.

    Args:
        cells: of runs.
        target: accuracy to mark, in (0, 1].
    """
    series = group(cells)
    panels = [learning(series, [score.name], target, width=500) for score in scores_of(cells)]
    return Plot(independent(alt.vconcat(*panels, title="" if panels else "Nothing was evaluated")))


def grid_plot(grid: pd.DataFrame, best: "pd.Series[float] | None") -> Plot:
    """Updates a second and their mean age over concurrency and buffer; a frame marks the best."""
    best_row = grid.iloc[:0] if best is None else best.to_frame().T
    x = alt.X("buffer_size:O").axis(labelAngle=0)
    y = alt.Y("concurrency:O").sort("descending")
    panels = []
    for name in ("updates_per_second", "mean_age"):
        base = alt.Chart(grid, title=name.replace("_", " "), width=300).encode(x, y)
        colour = alt.Color(f"{name}:Q").scale(type="sqrt", range=["#eee", "#4c78a8"])
        cells = base.mark_rect().encode(colour.legend(None))
        frame = base.mark_rect(stroke="black", strokeWidth=2, fillOpacity=0)
        text = base.mark_text().encode(alt.Text(f"{name}:Q", format=".3~g"))
        panels.append(alt.layer(cells, frame.properties(data=best_row), text))
    return Plot(alt.hconcat(*panels).resolve_scale(color="independent"))
