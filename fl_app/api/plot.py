"""Curves of runs, as a figure that a notebook shows."""

import io
from base64 import b64encode
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from fl_app.report.cells import Cell, scores_of
from fl_app.report.figures import MAX_LINES, draw_score
from fl_app.report.series import group, time_label
from fl_app.report.style import RC, looks

DPI = 110
COLOURS = 64


class Plot(Figure):
    """A figure of matplotlib that notebooks show, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        canvas = FigureCanvasAgg(self)
        canvas.draw()  # type: ignore[no-untyped-call]
        pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
        # With a palette the picture has a third of the bytes, which a notebook stores.
        picture = Image.fromarray(pixels).convert("RGB").quantize(COLOURS)
        file = io.BytesIO()
        picture.save(file, format="png", optimize=True)
        return file.getvalue()

    def html(self) -> str:
        """The picture as an element of a page."""
        return f'<img src="data:image/png;base64,{b64encode(self._repr_png_()).decode()}">'


def plot(cells: Sequence[Cell], target: float) -> Plot:
    """The score over time, seeds as a band; where cells differ, a panel for each score.

    Args:
        cells: of runs.
        target: accuracy to mark, in (0, 1].
    """
    scores = scores_of(cells)
    series = group(cells)
    with matplotlib.rc_context(RC):
        figure = Plot(figsize=(7, 3.6 * max(len(scores), 1)), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        drawn, unit = looks([each.algorithm for each in series]), time_label(cells)
        for number, score in enumerate(scores, 1):
            axes = figure.add_subplot(len(scores), 1, number)
            draw_score(axes, series, drawn, score, target, unit, None, MAX_LINES)
        if not scores:
            figure.suptitle("Nothing was evaluated")
    return figure
