"""A picture of a sweep: the score over two keys of the configuration."""

import difflib
import json
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fl_app.core.errors import is_number, require
from fl_app.record.score import ACCURACY
from fl_app.report.cells import Cell, common_score, scores_of
from fl_app.report.naming import matches, settings_of, shortest, texts_of, varied
from fl_app.report.style import RC, save

LIGHT = 0.6  # share of the score's range above which the background is light
LETTER = 0.075  # width of a tick label's letter, inches


def write_grid(
    cells: Sequence[Cell], keys: tuple[str, str], path: Path, *, pdf: bool = False
) -> Figure:
    """Draw the score of cells over two keys of their configuration.

    The score is the mean of the last ten evaluations. Cells with the same values of both keys
    are averaged; the title names the other keys over which this mean is taken.

    Args:
        cells: of the run.
        keys: of the horizontal and the vertical axis: ``algorithm.client.local_lr``, or an
            unambiguous end such as ``local_lr``.
        path: of the PNG.
        pdf: whether to write a PDF beside it.

    Returns:
        The figure.

    Raises:
        ValueError: no cell has a summary with a score, cells have different ones, or a key is
            unknown, ambiguous or missing in the configuration of a cell.
    """
    settings = [settings_of(cell) for cell in cells]
    known = {key for each in settings for key in each}
    changed = varied(cells, settings)
    keys = (_whole(keys[0], known, changed), _whole(keys[1], known, changed))
    found: list[tuple[tuple[Any, Any], float]] = []
    for cell, values in zip(cells, settings, strict=True):
        for key in keys:
            require(key in values, "--grid", key, f"a key of {cell.name}", "it has no place")
        value = cell.summary.get(f"last10_{(cell.score or ACCURACY).name}")
        if value is not None:
            found.append(((values[keys[0]], values[keys[1]]), value))
    if not found:
        raise ValueError("--grid: no cell has a summary with a score, nothing could be drawn")
    score = common_score(cells) if scores_of(cells) else ACCURACY
    across, up = (_ticks([place[axis] for place, _ in found]) for axis in (0, 1))
    cells_at: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (x, y), value in found:
        cells_at[across.index(x), up.index(y)].append(value)
    mean = {place: fmean(values) for place, values in cells_at.items()}
    rows = [[mean.get((x, y), math.nan) for x in range(len(across))] for y in range(len(up))]
    light = min(mean.values()) + LIGHT * (max(mean.values()) - min(mean.values()))
    below, beside = texts_of(across), texts_of(up)
    crowded = max(map(len, below)) > 9
    width = 1.6 + 0.8 * len(across) + LETTER * max(map(len, beside))
    height = 1.2 + 0.45 * len(up) + crowded * LETTER * max(map(len, below))
    averaged = [shortest(key, known) for key in changed if key not in keys]
    with matplotlib.rc_context({**RC, "axes.grid": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        edges = (np.arange(len(places) + 1) - 0.5 for places in (across, up))
        axes.pcolormesh(*edges, rows, cmap="cividis")  # in a PDF an image would be blurred
        axes.set_xticks(range(len(across)), below, rotation=90 if crowded else 0)
        axes.set_yticks(range(len(up)), beside)
        axes.set_xlabel(shortest(keys[0], known))
        axes.set_ylabel(shortest(keys[1], known))
        form = "{:.0%}" if score.is_share else "{:.3g}"
        for (x, y), value in mean.items():  # a place without a cell stays empty
            colour = "black" if value > light else "white"
            axes.text(x, y, form.format(value), ha="center", va="center", color=colour)
        title = f"{score.name}, mean of the\nlast ten evaluations"
        axes.set_title(f"{title}, over {', '.join(averaged)}" if averaged else title)
        save(figure, path, pdf=pdf, tight=True)  # a title may be wider than few columns
    return figure


def _whole(key: str, known: Collection[str], changed: Sequence[str]) -> str:
    """The key with an end that the user gave."""
    found = matches(key.replace("/", "."), known)
    if not found:
        ends = [shortest(each, known) for each in changed]
        close = difflib.get_close_matches(key, [key.rpartition(".")[2] for key in known], n=3)
        one_of = f"; did you mean {' or '.join(close)}?" if close else ""
        among = f"a key of the configuration, such as {', '.join(ends)}" if ends else "a key"
        raise ValueError(f"--grid={key} must be {among}: no cell has it{one_of}")
    require(len(found) == 1, "--grid", key, f"one of {', '.join(found)}", "all of them end so")
    return found[0]


def _ticks(values: Sequence[Any]) -> list[Any]:
    """The distinct values: numbers in ascending order, then others in order of appearance."""
    unique = list({json.dumps(value): value for value in values}.values())
    return sorted(unique, key=lambda value: (0, value) if is_number(value) else (1, 0))
