"""A picture of a sweep: the accuracy over two keys of the configuration."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from fl_app.core.errors import require
from fl_app.report.cells import Cell
from fl_app.report.style import RC

LIGHT = 0.6  # of the accuracy's range, from which on the background is light


def write_grid(cells: Sequence[Cell], keys: tuple[str, str], path: Path) -> Figure:
    """Draw each cell's accuracy at the place that two keys of its configuration give it.

    The accuracy is the mean of the last ten evaluations, over cells that differ in neither key.

    Args:
        cells: of the run.
        keys: such as ``algorithm.client.local_lr``, from left to right and from bottom to top.
        path: of the PNG.

    Returns:
        What was drawn.

    Raises:
        ValueError: no cell has been run to its end, or one's configuration lacks a key.
    """
    found: dict[tuple[Any, Any], list[float]] = defaultdict(list)
    for cell in cells:
        accuracy = cell.summary.get("last10_accuracy")
        config = OmegaConf.create(cell.config)
        place = tuple(OmegaConf.select(config, key) for key in keys)
        for key, value in zip(keys, place, strict=True):
            require(value is not None, "--grid", key, f"a key of {cell.name}", "it has no place")
        if accuracy is not None:
            found[place[0], place[1]].append(accuracy)
    if not found:
        raise ValueError("--grid: no cell has a summary with an accuracy, nothing could be drawn")
    across, up = (sorted({place[axis] for place in found}) for axis in (0, 1))
    means = [fmean(accuracies) for accuracies in found.values()]
    light = min(means) + LIGHT * (max(means) - min(means))
    rows = [[fmean(found.get((x, y), [float("nan")])) for x in across] for y in up]
    with matplotlib.rc_context({**RC, "axes.grid": False}):
        figure = Figure(figsize=(1.6 + 0.8 * len(across), 1.0 + 0.45 * len(up)))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained")
        axes = figure.add_subplot()
        axes.imshow(rows, origin="lower", aspect="auto", cmap="cividis")
        axes.set_xticks(range(len(across)), [f"{x:g}" for x in across])
        axes.set_yticks(range(len(up)), [f"{y:g}" for y in up])
        axes.set_xlabel(keys[0])
        axes.set_ylabel(keys[1])
        for y, row in enumerate(rows):
            for x, accuracy in enumerate(row):
                if math.isfinite(accuracy):  # a place without a cell stays empty
                    colour = "black" if accuracy > light else "white"
                    axes.text(x, y, f"{accuracy:.0%}", ha="center", va="center", color=colour)
        axes.set_title("accuracy, mean of the last ten evaluations")
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path)
    return figure
