"""Parts that the interactive figures of a report share."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from fl_app.report.style import GRID, INK, MUTED, Look

Figure: TypeAlias = dict[str, Any]  # as Plotly's JavaScript takes it

MAX_POINTS = 600  # of a curve
MAX_DOTS = 60  # points of a curve up to which each is marked
MAX_NAMED = 40  # clients along an axis up to which each is named

_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot", "long": "longdash"}


def layout_of(x: str, y: str, *, height: int = 300, legend: bool = True) -> dict[str, Any]:
    """The layout of a figure: titles of the axes, height in pixels, and whether it has a legend.

    The height is without the legend. The number of the legend's lines depends on the width of the
    page, so the page adds their height (`fl_app.report.template`).
    """
    axis = {
        "gridcolor": GRID,
        "linecolor": MUTED,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": MUTED,
        "ticklen": 4,
    }
    return {
        "height": height,
        "margin": {"l": 60, "r": 16, "t": 40, "b": 48},
        "showlegend": legend,
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y, "standoff": 10}, "automargin": True},
        "legend": {
            "orientation": "h",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "x": 0,
            "tracegroupgap": 0,
        },
        "modebar": {"bgcolor": "white", "color": MUTED, "activecolor": INK},
        "hoverlabel": {"bgcolor": "white", "font": {"color": INK}, "align": "left"},
    }


def choice(buttons: list[dict[str, Any]]) -> dict[str, Any]:
    """Buttons above the figure; one of them is active."""
    return {
        "type": "buttons",
        "direction": "right" if len(buttons) <= 3 else "down",
        "buttons": buttons,
        "x": 0,
        "xanchor": "left",
        "y": 1.02,
        "yanchor": "bottom",
        "pad": {"t": 0, "b": 4},
        "bgcolor": "white",
        "bordercolor": GRID,
        "font": {"size": 11},
        "showactive": True,
    }


def line_of(look: Look, width: float = 2) -> dict[str, Any]:
    """Style of a series' line."""
    return {
        "type": "scatter",
        "mode": "lines",
        "line": {"color": look.colour, "width": width, "dash": _DASHES[look.line]},
    }


def dots(points: int) -> dict[str, Any]:
    """Mark the points of a curve if there are few."""
    return {"mode": "lines+markers" if points <= MAX_DOTS else "lines", "marker": {"size": 4}}


def remark(text: str) -> dict[str, Any]:
    """A text above the figure, at its left edge."""
    where = {"xref": "paper", "yref": "paper", "x": 0, "y": 1.01}
    return {**where, "xanchor": "left", "yanchor": "bottom", "text": text, "showarrow": False}


def faint(colour: str, alpha: str = "2e") -> str:
    """The colour with an alpha, by default 0.18 as in the printed figures."""
    return colour + alpha


def few(x: ArrayLike, y: ArrayLike) -> tuple[list[float], list[float]]:
    """At most `MAX_POINTS` of the points, which include the first and the last."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    at = spread_out(x.size)
    return plain(x[at]), plain(y[at])


def spread_out(size: int, most: int = MAX_POINTS) -> Any:
    """At most so many evenly spread indices of an array, with the first and the last."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(int))


def means(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most `MAX_POINTS` points, each the mean of equally many neighbours."""
    parts = min(len(x), MAX_POINTS)
    return tuple(  # type: ignore[return-value]
        [float(part.mean()) for part in np.array_split(np.asarray(values, float), parts)]
        for values in (x, y)
    )


def plain(values: ArrayLike) -> list[float]:
    """Numbers with six significant digits, more than a screen shows."""
    return [float(f"{value:.6g}") for value in np.asarray(values, float)]


def rounded(times: Iterable[float | None]) -> list[float | None]:
    """Times rounded to 0.1 ms; None is a gap in a line."""
    return [None if t is None else round(t, 4) for t in times]
