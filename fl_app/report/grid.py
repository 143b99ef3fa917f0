"""A picture of a sweep: the score over two keys of the configuration."""

import difflib
import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from statistics import fmean
from typing import Any

import altair as alt

from fl_app.core.errors import is_number, require
from fl_app.record.score import ACCURACY
from fl_app.report.cells import Cell, common_score, scores_of
from fl_app.report.figures import Chart, table
from fl_app.report.naming import matches, settings_of, shortest, texts_of, varied

LIGHT = 0.6  # share of the score's range above which the background is light
STEP = 40  # pixels of a place


def grid(cells: Sequence[Cell], keys: tuple[str, str]) -> Chart:
    """The score of cells over two keys of their configuration.

    The score is the mean of the last ten evaluations. Cells with the same values of both keys
    are averaged; the title names the other keys over which this mean is taken.

    Args:
        cells: of the run.
        keys: of the horizontal and the vertical axis: ``algorithm.client.local_lr``, or an
            unambiguous end such as ``local_lr``.

    Returns:
        A figure with `STEP` pixels for each value of a key.

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
    below, beside = texts_of(across), texts_of(up)
    seeds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (x, y), value in found:
        seeds[below[across.index(x)], beside[up.index(y)]].append(value)
    mean = {place: fmean(scores) for place, scores in seeds.items()}
    light = min(mean.values()) + LIGHT * (max(mean.values()) - min(mean.values()))
    form = ".0%" if score.is_share else ".3~g"
    averaged = [shortest(key, known) for key in changed if key not in keys]
    over = f", over {', '.join(averaged)}" if averaged else ""
    title = [f"{score.name}, mean of the", f"last ten evaluations{over}"]
    data = table("x y score", [(*place, value) for place, value in mean.items()])
    angle = -90 if max(map(len, below)) > 6 else 0
    places = alt.Chart(data).encode(
        x=alt.X("x:O")
        .sort(below)
        .title(shortest(keys[0], known))
        .scale(domain=below)
        .axis(labelAngle=angle),
        y=alt.Y("y:O")
        .sort(beside[::-1])
        .title(shortest(keys[1], known))
        .scale(domain=beside[::-1]),
    )
    rectangles = places.mark_rect().encode(
        color=alt.Color("score:Q").scale(scheme="cividis").legend(None),
        tooltip=["x:N", "y:N", "score:Q"],
    )
    colour = (
        alt.when(f"datum.score > {light}").then(alt.value("black")).otherwise(alt.value("white"))
    )
    texts = places.mark_text().encode(text=alt.Text("score:Q", format=form), color=colour)
    size = {"width": STEP * len(below), "height": STEP * len(beside)}
    return alt.layer(rectangles, texts).properties(title=title, **size)


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
