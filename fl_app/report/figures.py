"""Draws a run for print: score over time, staleness, and the timeline of the clients."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fl_app.record.measures import mean_age
from fl_app.record.score import ACCURACY, Score
from fl_app.report import style
from fl_app.report.cells import Cell, scores_of
from fl_app.report.series import (
    Curve,
    Series,
    activity,
    by_cluster,
    client_curve,
    client_metrics,
    curve,
    group,
    histogram,
    labels,
    learning_phase,
    middles_of,
    reached,
    rows,
    sample,
    seconds,
    time_label,
    training_share,
    whose,
    window,
)
from fl_app.report.style import INK, MUTED, RC, WAITING, Look, looks

MAX_LINES = 12  # curves in one plot; more are drawn as small multiples
MAX_PANELS = 8  # series with staleness and timeline in the overview
LONG = 45  # characters of a legend's line above which the legend is below the plot
BELOW = 70  # characters of a legend's line below the plot
PANEL = 24  # characters of a line above a small panel
MAX_LABELS = 15  # clients named in a panel of the timeline
MAX_NAMED = 4  # panels in which they are, since those are high enough
SLIM = "#555555"  # of transfers, beside a bar of any colour
_LOST: dict[str, Any] = {"color": "black", "marker": "x", "ls": "", "ms": 4, "mew": 1.2}
_FRESH: dict[str, Any] = {
    "color": "white",
    "marker": "^",
    "ls": "",
    "ms": 4,
    "mec": INK,
    "mew": 0.7,
}
_VERSION: dict[str, Any] = {"colors": INK, "lw": 0.7, "clip_on": False}
_CLUSTERS: dict[str, Any] = {"colors": INK, "lw": 0.8, "linestyles": ":"}


def write_figures(cells: Sequence[Cell], target: float, folder: Path, *, pdf: bool = False) -> None:
    """Write score (``accuracy.png``), staleness, timeline and overview.

    Nothing is drawn of a score where nothing was evaluated. If cells are judged by different
    scores, each has its picture, and the overview has the first.

    Args:
        cells: of the run, in the order of legends and panels.
        target: accuracy to which times are measured, in (0, 1].
        folder: created if it does not exist.
        pdf: whether to write each as PDF, too.
    """
    save = partial(style.save, pdf=pdf)
    series = group(cells)
    drawn = looks([each.algorithm for each in series])
    unit = time_label(cells)
    panels = len(series)
    columns = min(panels, 4)
    scores = scores_of(cells)
    with matplotlib.rc_context(RC):
        for score in scores:
            zoom = learning_phase(series, target) if score == ACCURACY else None
            if panels > MAX_LINES:
                room = 1.7 + _extra(series, PANEL)
                figure = _figure(1 + 2.4 * columns, 0.9 + room * math.ceil(panels / columns))
                draw_multiples(figure, series, drawn, score, target, unit, columns)
            else:
                figure = _figure(11 if zoom else 7, 4.2 + _below(series))
                whole = figure.subplots(1, 2 if zoom else 1, squeeze=False, sharey=True).ravel()
                for axes, until in zip(whole, (zoom, None) if zoom else (None,), strict=True):
                    draw_score(axes, series, drawn, score, target, unit, until)
                if zoom:
                    whole[0].set_title(f"until all are at {target:.0%}")
                    whole[1].set_title("whole run")
                    whole[1].get_legend().remove()
            _title(figure, "Who learns faster")
            save(figure, folder / f"{score.name}.png")

        for metric in client_metrics(cells)[:1]:
            figure = _figure(7, 4.2 + _below(series))
            draw_on_clients(figure.subplots(), series, drawn, metric, unit)
            _title(figure, "On the clients")
            save(figure, folder / "clients.png")

        room = 2 + _extra(series, PANEL)
        figure = _figure(1 + 2.4 * columns, 0.7 + room * math.ceil(panels / columns))
        draw_staleness(figure, series, drawn, columns)
        _title(figure, "How stale the updates are")
        save(figure, folder / "staleness.png")

        figure = _figure(9, 1 + (1.9 + _extra(series, 50)) * panels)
        draw_timeline(figure, series, drawn, unit, letters=50)
        _title(figure, "Who trains when")
        save(figure, folder / "timeline.png")

        first = slice(MAX_PANELS)
        panels = len(series[first])
        columns = min(panels, 2)
        lines = math.ceil(panels / columns)
        told = len(series) if len(series) <= MAX_LINES else panels
        legend, names = _below(series[:told]), _extra(series[first], 32)
        height = max(6.6 + legend + lines * _extra(series[first], PANEL), 0.9 + 1.55 * panels)
        figure = _figure(12, height + names * panels)
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1, 1.25)).ravel()
        heights = (3.3 + legend, 0.4 + (1.3 + _extra(series[first], PANEL)) * lines)
        top, bottom = left.subfigures(2, 1, squeeze=False, height_ratios=heights).ravel()
        if scores:
            zoom = learning_phase(series, target) if scores[0] == ACCURACY else None
            draw_score(top.subplots(), series, drawn, scores[0], target, unit, zoom, told)
        draw_staleness(bottom, series[first], drawn[first], columns)
        draw_timeline(
            right,
            series[first],
            drawn[first],
            unit,
            max_clients=25 if panels <= MAX_NAMED else 12,
            letters=32,
        )
        some = f" (first {panels} of {len(series)})" if panels < len(series) else ""
        _title(top, "Who learns faster" if scores else "Nothing was evaluated")
        _title(bottom, f"How stale the updates are{some}")
        _title(right, f"Why: who trains when{some}")
        save(figure, folder / "overview.png")


def draw_score(
    axes: Axes,
    series: Sequence[Series],
    drawn: Sequence[Look],
    score: Score,
    target: float,
    unit: str,
    until: float | None,
    told: int | None = None,
) -> None:
    """Score over time; of accuracies, also the time at which each series reaches the target.

    A band reaches from the lowest to the highest seed. Band and mean end where the first seed ends;
    the rest of the other seeds is drawn as thin lines.

    Args:
        axes: to draw on.
        series: to draw.
        drawn: look of each series.
        score: metric to draw.
        target: accuracy in (0, 1]; other scores have no target.
        unit: label of the time axis.
        until: end of the time axis, seconds; None = the last event.
        told: number of series in the legend; the others are grey. None = all.
    """
    told = len(series) if told is None else told
    aims = score == ACCURACY
    for each, look in zip(series[:told], drawn, strict=False):
        line = curve(each, y=score.name)
        moment = reached(line, target) if aims else None
        mean = "mean " if len(each.cells) > 1 else ""  # the table has the mean of the moments
        never, first = f"{mean}never {target:.0%}", f"{mean}{target:.0%} first at"
        when = never if moment is None else f"{first} {seconds(moment)}"
        best = score.best(line.mean)
        what = when if aims else "unknown" if best is None else f"best {score.form.format(best)}"
        label = _lines(f"{_told(each)}: {what}", BELOW)
        _draw_curve(axes, each, look, line, label)
        if moment is not None:
            axes.plot([moment, moment], [0, target], color=look.colour, lw=0.8, ls=":")
            axes.plot(moment, target, "o", color=look.colour, ms=6, mec="white", mew=1, zorder=5)
    _background(axes, series[told:], score)
    if any(len(each.cells) > 1 for each in series[:told]):
        label = "lowest to highest seed"
        axes.fill_between([], [], [], color=MUTED, alpha=0.35, lw=0, label=label)
    if aims:
        axes.axhline(target, color=MUTED, lw=0.8, ls=(0, (4, 3)), zorder=1)
    axes.set_xlim(0, until)
    _scale(axes, series, score, target)
    axes.set_xlabel(unit)
    axes.set_ylabel(f"{whose([c for each in series for c in each.cells])} {score.name}")
    axes.label_outer()
    many = told > 8
    if _below(series[:told]):
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.16), borderaxespad=0)
    else:
        axes.legend(ncols=1 + many, fontsize=6.5 if many else None).set_in_layout(False)


def draw_on_clients(
    axes: Axes, series: Sequence[Series], drawn: Sequence[Look], metric: str, unit: str
) -> None:
    """What clients measured on their own data: the mean, and a band to the worst tenth.

    Args:
        axes: to draw on.
        series: to draw; those whose clients did not evaluate are left out.
        drawn: look of each series.
        metric: to draw.
        unit: label of the time axis.
    """
    score = Score(metric)
    for each, look in zip(series, drawn, strict=True):
        line = client_curve(each, metric)
        if not line.t.size:
            continue
        last = (
            f"{score.form.format(line.mean[-1])}, worst decile {score.form.format(line.worst[-1])}"
        )
        label = _lines(f"{_told(each)}: {last}", BELOW)
        axes.plot(line.t, line.mean, ls=look.dashes, color=look.colour, label=label)
        axes.fill_between(line.t, line.mean, line.worst, color=look.colour, alpha=0.18, lw=0)
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)
    if score.is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(unit)
    axes.set_ylabel(f"clients' {metric}")
    if _below(series):
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.16), borderaxespad=0)
    else:
        axes.legend(fontsize=6.5).set_in_layout(False)


def draw_multiples(
    figure: Figure | SubFigure,
    series: Sequence[Series],
    drawn: Sequence[Look],
    score: Score,
    target: float,
    unit: str,
    columns: int,
) -> None:
    """Score over time of many series: a panel for each, with all others in grey."""
    aims = score == ACCURACY
    panels = _grid(figure, len(series), columns)
    for number, (axes, each, look) in enumerate(zip(panels, series, drawn, strict=True)):
        line = curve(each, y=score.name)
        _background(axes, series, score)
        _draw_curve(axes, each, Look(look.colour, "-"), line)
        moment = reached(line, target) if aims else None
        if moment is not None:
            axes.plot(moment, target, "o", color=look.colour, ms=4, mec="white", mew=0.7, zorder=5)
        if aims:
            axes.axhline(target, color=MUTED, lw=0.6, ls=(0, (4, 3)), zorder=1)
        _name(axes, each, look, PANEL)
        axes.set_xlim(0, None)
        _scale(axes, series, score, target, decimals=0)
        axes.tick_params(labelleft=number % columns == 0)
    dashed = f"; dashed: {target:.0%}" if aims else ""
    seeds = any(len(each.cells) > 1 for each in series)
    band = "; bands: lowest to highest seed" if seeds else ""
    figure.supxlabel(f"{unit}; grey: all others{dashed}{band}", fontsize=9)
    owner = whose([cell for each in series for cell in each.cells])
    figure.supylabel(f"{owner} {score.name}", fontsize=9)


def _draw_curve(
    axes: Axes, series: Series, look: Look, line: Curve, label: str | None = None
) -> None:
    axes.plot(line.t, line.mean, ls=look.dashes, color=look.colour, label=label)
    if len(series.cells) > 1:
        axes.fill_between(line.t, line.low, line.high, color=look.colour, alpha=0.18, lw=0)
    for t, values in line.tails:
        axes.plot(t, values, color=look.colour, lw=0.5, alpha=0.6)


def _background(axes: Axes, series: Sequence[Series], score: Score) -> None:
    """The curves of other series, in grey."""
    for number, each in enumerate(series):
        line = curve(each, y=score.name)
        label = None if number else f"the other {len(series)}"
        axes.plot(line.t, line.mean, color=WAITING, lw=0.7, zorder=1, label=label)


def _scale(
    axes: Axes, series: Sequence[Series], score: Score, target: float, decimals: int | None = None
) -> None:
    """The axis of a score: from 0 or the lowest value to the highest one or the target."""
    lines = [curve(each, y=score.name) for each in series]
    values = np.concatenate([v for c in lines for v in (c.low, c.high, *(v for _, v in c.tails))])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if score == ACCURACY and high > target / 2:  # one far above all curves would flatten them
        high = max(high, target)
    axes.set_ylim(min(low, 0), 1.05 * high if high > 0 else 1)
    if score.is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=decimals))


def draw_staleness(
    figure: Figure | SubFigure, series: Sequence[Series], drawn: Sequence[Look], columns: int
) -> None:
    """A histogram of the aggregated updates' ages for each series, on a common scale."""
    grid = _grid(figure, len(series), columns)
    oldest = max((max(each.ages, default=0) for each in series), default=0)
    width = math.ceil((oldest + 1) / 30)
    for axes, each, look in zip(grid, series, drawn, strict=True):
        ages = each.ages
        _name(axes, each, look, PANEL)
        if ages:
            first, share = histogram(ages, width)
            axes.bar(first + (width - 1) / 2, share, 0.85 * width, color=look.colour)
            note = f"mean {mean_age(ages):.1f}, max {max(ages)}"
            axes.annotate(note, (0.98, 0.98), xycoords="axes fraction", ha="right", va="top")
            axes.margins(y=0.17)  # room for the note
        axes.set_xlim(-0.8, oldest + width - 0.2)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="x", visible=False)
    figure.supxlabel("age of the update when it was aggregated (versions)", fontsize=9)
    figure.supylabel("share of updates", fontsize=9)


def draw_timeline(
    figure: Figure | SubFigure,
    series: Sequence[Series],
    drawn: Sequence[Look],
    unit: str,
    max_clients: int = 60,
    letters: int = 50,
) -> None:
    """A panel for the first seed of each series: when clients train and wait, and new versions."""
    cells = [each.cells[0] for each in series]
    until = window(cells)
    active = rows(cells, until)
    clients = sample(active, max_clients)
    grid = _grid(figure, len(series), 1)
    for axes, each, cell, look in zip(grid, series, cells, drawn, strict=True):
        own, clusters = by_cluster(cell, clients, until)
        _draw_orders(axes, cell, own, clusters, until, look.colour)
        versions = sum(t <= until for t in cell.aggregations)
        updates = sum(
            order.ended == "arrival" and cell.end(order) <= until for order in cell.history.orders
        )
        _name(axes, each, look, letters)
        axes.set_title(
            f"{training_share(cell, until):.0%} training, {updates} updates, {versions} versions",
            loc="right",
        )
        axes.set_xlim(0, until or 1)
        axes.grid(axis="y", visible=False)
        if clusters:
            middles = middles_of(clusters, range(len(clusters)))
            axes.set_yticks([*middles.values()], [f"cluster {number + 1}" for number in middles])
        elif len(clients) <= MAX_LABELS and len(series) <= MAX_NAMED:
            axes.set_yticks(range(len(clients)), labels(clients))
        else:
            axes.set_yticks([0, len(clients) - 1], ["fast", "slow"])
        axes.tick_params(axis="y", length=0)
        axes.label_outer()
    grid[-1].set_xlabel(unit)
    shown = "clients" if len(clients) == len(active) else f"{len(clients)} of {len(active)} clients"
    figure.supylabel(shown, fontsize=9)
    _explain(figure, cells)


def _draw_orders(
    axes: Axes,
    cell: Cell,
    clients: Sequence[int],
    clusters: Sequence[int],
    until: float,
    colour: str,
) -> None:
    """One panel: a lane for each client, with training above transfers if these take time."""
    row = {client: number for number, client in enumerate(clients)}
    waits = [(row[w.client], w.start, w.end) for w in cell.waits if w.client in row]
    orders = [o for o in cell.history.orders if o.client in row and o.start < until]
    lost = [(cell.end(o), row[o.client]) for o in orders if o.ended in ("failure", "reject")]
    fresh = [(t, row[o.client]) for o in orders for t in o.fresh if t <= until]
    gap = until / 800  # separates consecutive orders
    training: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    transfers = []
    for order in orders:
        lane = row[order.client]
        trains, carries = activity(cell, order)
        pale = bool(clusters) and clusters[lane] % 2 == 1
        for start, end in trains:
            begins = start + min(gap, (end - start) / 4)
            training[_pale(colour) if pale else colour].append((lane, begins, end))
        transfers += [(lane, start, end) for start, end in carries]
    bottom = -0.12 if transfers else -0.45
    axes.add_collection(_bars(waits, WAITING, bottom))
    for shade, spans in training.items():
        axes.add_collection(_bars(spans, shade, bottom))
    axes.add_collection(_bars(transfers, SLIM, -0.4, -0.2))
    for points, sign in ((lost, _LOST), (fresh, _FRESH)):
        if points:
            axes.plot([t for t, _ in points], [lane for _, lane in points], **sign)
    height = max(len(clients), 1)
    bottom, top = height * 1.02 - 0.5, height * 1.1 - 0.5
    axes.vlines([t for t in cell.aggregations if t <= until], bottom, top, **_VERSION)
    if cell.clusters:
        axes.vlines([t for t, _ in cell.clusters if t <= until], -0.5, top, **_CLUSTERS)
    axes.set_ylim(-0.5 - 0.02 * height, top)


def _pale(colour: str) -> str:
    """The colour of every second cluster: half white."""
    red, green, blue = (0.45 * part + 0.55 for part in to_rgb(colour))
    return to_hex((red, green, blue))


def _explain(figure: Figure | SubFigure, cells: Sequence[Cell]) -> None:
    """The legend of the timelines: of the signs that occur, and of those that always may."""
    orders = [order for cell in cells for order in cell.history.orders]
    signs: list[Patch | Line2D] = [
        Patch(color="#7a7a7a", label="trains"),
        Patch(color=WAITING, label="has reported, waits for others"),
        Line2D([], [], label="update lost", **_LOST),
        Line2D([], [], label="new version", marker="|", ls="", ms=8, color=INK),
    ]
    if any(order.parts for order in orders):
        signs.insert(1, Line2D([], [], label="transfers", color=SLIM, lw=2))
    if any(order.fresh for order in orders):
        signs.append(Line2D([], [], label="gets a fresh model", **_FRESH))
    if any(cell.clusters for cell in cells):
        line = {"color": INK, "ls": _CLUSTERS["linestyles"], "lw": _CLUSTERS["lw"]}
        signs.append(Line2D([], [], label="clusters formed", **line))
    figure.legend(
        handles=signs, loc="outside lower center", ncols=4, handlelength=1, columnspacing=1.5
    )


def _bars(
    spans: Iterable[tuple[int, float, float]], colour: Any, bottom: float, top: float = 0.45
) -> PolyCollection:
    corners = [
        [(x0, y + bottom), (x0, y + top), (x1, y + top), (x1, y + bottom)] for y, x0, x1 in spans
    ]
    return PolyCollection(corners, facecolor=colour, lw=0, snap=False)


def _grid(figure: Figure | SubFigure, panels: int, columns: int) -> list[Axes]:
    grid = figure.subplots(math.ceil(panels / columns), columns, squeeze=False, sharex=True).ravel()
    for unused in grid[panels:]:
        unused.remove()
    for lowest in grid[max(0, panels - columns) : panels]:
        lowest.tick_params(labelbottom=True)  # also above a place that stays empty
    return list(grid[:panels])


def _name(axes: Axes, series: Series, look: Look, letters: int) -> None:
    """Write a series' name above its panel, in several lines or small letters if it is long."""
    size = 8 if len(series.name) > letters - 6 else None
    title = _lines(series.name, letters)
    axes.set_title(title, color=look.colour, fontweight="bold", fontsize=size)


def _told(series: Series) -> str:
    """A series' name in a legend."""
    number = len(series.cells)
    return f"{series.name} ({number} seeds)" if number > 1 else series.name


def _lines(text: str, letters: int) -> str:
    """Break a text at spaces, and words that are too long after = and _."""
    lines = [""]
    for word in re.split(r"(?<= )", text):
        for piece in re.split(r"(?<=[=_])", word) if len(word) > letters else [word]:
            if lines[-1] and len(lines[-1] + piece.rstrip()) > letters:
                lines.append("")
            lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _extra(series: Sequence[Series], letters: int) -> float:
    """Inches for the further lines of the longest name."""
    most = max((_lines(each.name, letters).count("\n") for each in series), default=0)
    return 0.15 * most


def _below(series: Sequence[Series]) -> float:
    """Inches of a legend below the plot; 0 = the legend fits into the plot."""
    names = [_told(each) for each in series]
    if max(map(len, names), default=0) <= LONG:
        return 0.0
    return 0.16 * (
        1 + sum(1 + (len(each) + len(": 90% first at 1,000 s")) // BELOW for each in names)
    )


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _title(figure: Figure | SubFigure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=10.5, fontweight="bold")
