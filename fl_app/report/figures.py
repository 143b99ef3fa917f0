"""The figures of a report: of each one specification, for the page and for PNG, PDF and SVG.

A specification holds its numbers, so that a page needs no other file. In a browser a click on a
name selects its line, the mouse shows numbers, dragging moves a figure, and the wheel with the
shift key zooms. On paper it is the first view.
"""

import io
import json
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import altair as alt
import numpy as np
import pandas as pd
import vl_convert
from PIL import Image

from fl_app.record.history import OrderRecord
from fl_app.record.measures import mean_age
from fl_app.record.score import ACCURACY, Score
from fl_app.report.cells import Cell, scores_of
from fl_app.report.series import (
    Curve,
    Series,
    Span,
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
    spread_out,
    time_label,
    training_share,
    whose,
    window,
)
from fl_app.report.style import GRID, INK, MUTED, WAITING, Look, looks

Chart: TypeAlias = Any  # of Altair: a single one, layers, or several side by side
Curves: TypeAlias = Callable[[Series, str, str], Curve]  # of a series, an axis and a metric

MAX_CURVES = 12  # in one plot; more have a plot each
MAX_PANELS = 8  # series with staleness and timeline in the overview
MAX_ORDERS = 4000  # of all timelines on a page
MAX_VERSIONS = 1000  # of a timeline
MAX_CLIENTS = 1000  # in the picture of a partition
MAX_NAMED = 15  # clients named along the lanes of a timeline
FORMATS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "png": lambda spec: _png(spec),
    "pdf": lambda spec: vl_convert.vegalite_to_pdf(spec),
    "svg": lambda spec: vl_convert.vegalite_to_svg(spec).encode(),
}

AGES = "How stale the updates are: share of each age (versions) when aggregated"
_SLIM = "#555555"  # of transfers, beside a bar of any colour
_TICK = "M0,-1L0,1"
_CROSS = "M-0.6,-0.6L0.6,0.6M0.6,-0.6L-0.6,0.6"
# What a timeline shows -> its shape and its filling in the legend; the last are kinds of marks.
_SIGNS = {
    "trains": ("square", "#7a7a7a"),
    "waits for others": ("square", WAITING),
    "transfers": ("M-1,-0.2L1,-0.2L1,0.2L-1,0.2Z", _SLIM),
    "new version": (_TICK, INK),
    "update lost": (_CROSS, INK),
    "gets a fresh model": ("triangle-up", "white"),
    "clusters formed": ("diamond", INK),
    "recalled": ("triangle-down", "white"),
    "late or duplicate reply": ("circle", "white"),
}
_NAMES = {
    "refresh": "gets a fresh model",
    "cluster": "clusters formed",
    "recall": "recalled",
    "reject": "late or duplicate reply",
}


def specification(chart: Chart) -> dict[str, Any]:
    """A figure as Vega-Lite, in the style of this project."""
    chart = chart.configure(aria=False, font="sans-serif", background="white")
    chart = chart.configure_view(stroke=None).configure_title(anchor="start", fontSize=13)
    chart = chart.configure_axis(
        gridColor=GRID, domainColor=MUTED, tickColor=MUTED, titleFontWeight="normal"
    )
    chart = chart.configure_legend(labelFontSize=11, labelLimit=0, symbolStrokeWidth=2)
    spec: dict[str, Any] = chart.to_dict()
    return spec


def _png(spec: dict[str, Any]) -> bytes:
    """A picture of 256 colours, which takes a third of the bytes."""
    picture = Image.open(io.BytesIO(vl_convert.vegalite_to_png(spec, scale=1.6)))
    file = io.BytesIO()
    picture.convert("RGB").quantize().save(file, format="png", optimize=True)
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
        left.append(titled(chart, "Who learns faster"))
        save(left[-1], folder / f"{score.name}.png", formats)
    for metric in client_metrics(cells)[:1]:
        left.append(titled(on_clients(series, drawn, [metric], width=520), "On the clients"))
        save(left[-1], folder / "clients.png", formats)
    stale = titled(staleness(some, known, columns=2, width=235), AGES)
    save(titled(staleness(series, drawn), AGES), folder / "staleness.png", formats)
    every = titled(timeline(series, drawn, whole=False), "Who trains when")
    save(every, folder / "timeline.png", formats)
    few = timeline(some, known, max_clients=12, whole=False, width=640)
    first = apart(alt.vconcat(*left[:1], stale, spacing=30))
    both = alt.hconcat(first, titled(few, "Why: who trains when"), spacing=40)
    save(apart(both), folder / "overview.png", formats)


def titled(chart: Chart, title: str) -> Chart:
    """The figure below a title."""
    return chart.properties(title=title)


def apart(chart: Chart) -> Chart:
    """Figures side by side, each with its own legend."""
    return chart.resolve_scale(**dict.fromkeys(_CHANNELS, "independent"))


# One parameter moves and zooms all panels of a figure, on purpose.
warnings.filterwarnings("ignore", "Automatically deduplicated selection parameter")

_CHANNELS: list[Any] = ["color", "strokeDash", "shape", "fill", "stroke"]


# -- curves ----------------------------------------------------------------------------------------


def learning(
    series: Sequence[Series],
    drawn: Sequence[Look],
    metrics: Sequence[str],
    target: float,
    *,
    width: int = 440,
    until: float | None = None,
) -> Chart:
    """Metrics of the test set over time, versions or client updates, with one legend.

    A band reaches from the lowest to the highest seed. Band and mean end where the first seed ends;
    the rest of the other seeds is drawn as thin lines. Accuracies have a line at the target, and
    the legend tells when each series reaches it.

    Args:
        series: to draw.
        drawn: look of each.
        metrics: to draw side by side.
        target: accuracy in (0, 1].
        width: of each, pixels.
        until: end of the first view, seconds; None = all.
    """
    aims = ACCURACY.name in metrics
    names = []
    for each in series:
        line = curve(each, y=metrics[0])
        moment = reached(line, target) if aims else None
        mean = "mean " if len(each.cells) > 1 else ""  # the table has the mean of the moments
        when = (
            f"never {target:.0%}" if moment is None else f"{target:.0%} first at {seconds(moment)}"
        )
        names.append(f"{_told(each)}: {mean}{when}" if aims else _told(each))
    owner = whose([cell for each in series for cell in each.cells])
    aim = target if aims else None
    return _side_by_side(series, drawn, names, metrics, curve, owner, width, aim, until)


def on_clients(
    series: Sequence[Series], drawn: Sequence[Look], metrics: Sequence[str], *, width: int = 440
) -> Chart:
    """What clients measured on their own data: the mean, and a band to the worst tenth.

    Args:
        series: to draw; those whose clients did not evaluate are left out.
        drawn: look of each series.
        metrics: to draw side by side.
        width: of each, pixels.
    """
    told = [(each, look) for each, look in zip(series, drawn, strict=True) if each.on_clients]
    names = []
    for each, _ in told:
        evaluation = each.cells[0].history.client_evaluations[-1]
        form, (mean, _, worst) = Score(metrics[0]).form, evaluation.of(metrics[0])
        names.append(f"{_told(each)}: {form.format(mean)}, worst decile {form.format(worst)}")
    chosen, known = [each for each, _ in told], [look for _, look in told]
    return _side_by_side(chosen, known, names, metrics, client_curve, "clients'", width)


def _side_by_side(
    series: Sequence[Series],
    drawn: Sequence[Look],
    names: Sequence[str],
    metrics: Sequence[str],
    of: Curves,
    owner: str,
    width: int,
    target: float | None = None,
    until: float | None = None,
) -> Chart:
    axes = {"t": time_label([c for each in series for c in each.cells])}
    axes |= {"version": "versions", "client_updates": "client updates"}
    over = alt.param(
        name="over",
        value="t",
        bind=alt.binding_radio(options=[*axes], labels=[*axes.values()], name="over "),
    )
    picked = alt.selection_point(name="picked", fields=["cell"], bind="legend")
    legend = alt.Legend(
        orient="bottom",
        direction="vertical",
        columns=1 + (len(names) > 5),
        symbolType="stroke",
        symbolSize=500,
        offset=44,  # room for the name of the axis
    )
    colours = alt.Scale(domain=[*names], range=[look.colour for look in drawn])
    dashes = alt.Scale(domain=[*names], range=[[*look.dashes] for look in drawn])
    look_of: dict[str, Any] = {
        "color": alt.Color("cell:N", title=None, scale=colours, legend=legend),
        "opacity": alt.when(picked).then(alt.value(1)).otherwise(alt.value(0.1)),
    }
    dash = alt.StrokeDash("cell:N", title=None, scale=dashes, legend=legend)
    x = alt.X("x:Q", title=None).axis(grid=False)
    if until is not None:
        x = x.scale(domain=[0, until], nice=False)
    charts = []
    for metric in metrics:
        is_share = Score(metric).is_share
        y = alt.Y("mean:Q", title=f"{owner} {metric}").axis(format="~%" if is_share else "~g")
        aim = target if metric == ACCURACY.name else None
        points, tails, moments = _points(series, names, metric, of, axes, aim)

        def at(columns: str, rows: Sequence[tuple[Any, ...]]) -> Chart:
            chart = alt.Chart(table(columns, rows)).transform_filter("datum.over == over")
            return chart.encode(x=x, y=y, **look_of)  # noqa: B023, called at once

        mean = at("cell over x mean low high", points)
        lines = []
        if any(low < high for *_, low, high in points):
            band = mean.mark_area(clip=True, fillOpacity=0.18, strokeWidth=0)
            lines.append(band.encode(y=alt.Y("low:Q"), y2="high:Q"))
        lines.append(mean.mark_line(clip=True).encode(strokeDash=dash))
        if tails:
            line = at("cell over seed x mean", tails).mark_line(clip=True, strokeWidth=0.7)
            lines.append(line.encode(detail="seed:N", strokeDash=dash))
        if aim is not None:
            rule = alt.Chart(table("mean", [(aim,)])).mark_rule(color=MUTED, strokeDash=[4, 3])
            lines.append(rule.encode(y="mean:Q"))
        if moments:
            dot = {"filled": True, "size": 60, "stroke": "white", "strokeWidth": 1}
            lines.append(at("cell over x mean", moments).mark_point(clip=True, **dot))
        form = ".1%" if is_share else ".4~g"
        hover = mean.mark_point(clip=True, filled=True, size=120).encode(
            opacity=alt.value(0),
            tooltip=[
                alt.Tooltip("cell:N"),
                alt.Tooltip("x:Q", title="over", format=",.5~g"),
                *(alt.Tooltip(f"{name}:Q", format=form) for name in ("mean", "low", "high")),
            ],
        )
        lines.append(hover.add_params(picked, over, _zoom()))
        name = alt.Chart(table("x", [(0,)])).mark_text(
            text=alt.ExprRef(f"{json.dumps(axes)}[over]"), color=INK, clip=False
        )
        lines.append(name.encode(x=alt.value(width / 2), y=alt.value(336)))
        charts.append(alt.layer(*lines).properties(width=width, height=300))
    return alt.hconcat(*charts)


def _points(
    series: Sequence[Series],
    names: Sequence[str],
    metric: str,
    of: Curves,
    axes: Iterable[str],
    target: float | None,
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Means with their bands, single seeds beyond them, and when each mean is at the target."""
    points: list[tuple[Any, ...]] = []
    tails: list[tuple[Any, ...]] = []
    moments: list[tuple[Any, ...]] = []
    for each, name in zip(series, names, strict=True):
        for axis in axes:
            line = of(each, axis, metric)
            some = spread_out(line.t.size)
            columns = (column[some] for column in (line.t, line.mean, line.low, line.high))
            points += [(name, axis, *values) for values in zip(*columns, strict=True)]
            for seed, (t, values) in enumerate(line.tails):
                some = spread_out(t.size)
                known = zip(t[some], values[some], strict=True)
                tails += [(name, axis, f"{name}{seed}", *pair) for pair in known]
            moment = None if target is None else reached(line, target)
            if moment is not None:
                moments.append((name, axis, moment, target))
    return points, tails, moments


def table(columns: str, rows: Sequence[tuple[Any, ...]]) -> alt.InlineData:
    """Numbers of a figure as CSV, which takes a fourth of the bytes of a list of objects."""
    frame = pd.DataFrame(rows, columns=columns.split())
    text = frame.to_csv(index=False, float_format="%.6g")
    return alt.InlineData(values=text, format=alt.CsvDataFormat(type="csv"))


def _told(series: Series) -> str:
    """A series' name in a legend."""
    number = len(series.cells)
    return f"{series.name} ({number} seeds)" if number > 1 else series.name


def _zoom() -> alt.Parameter:
    return alt.selection_interval(
        name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.shiftKey]"
    )


# -- staleness -------------------------------------------------------------------------------------


def staleness(
    series: Sequence[Series], drawn: Sequence[Look], *, columns: int = 4, width: int = 220
) -> Chart:
    """Ages of the aggregated updates: a histogram for each series, on a common axis.

    Args:
        series: to draw.
        drawn: look of each.
        columns: histograms side by side.
        width: of each, pixels.
    """
    oldest = max((max(each.ages, default=0) for each in series), default=0)
    bin_ = math.ceil((oldest + 1) / 30)
    charts = []
    for each, look in zip(series, drawn, strict=True):
        first, share = histogram(each.ages, bin_)
        found = [*zip(first - 0.4, first + bin_ - 0.6, first, share, strict=True)]
        bars = alt.Chart(table("left right age share", found)).mark_bar(color=look.colour)
        note = f"mean {mean_age(each.ages):.1f}, max {max(each.ages)}" if each.ages else "none"
        bars = bars.encode(
            x=alt.X("left:Q")
            .title(None)
            .axis(grid=False, tickMinStep=1)
            .scale(domain=[-0.7, oldest + bin_ - 0.3], nice=False),
            x2="right:Q",
            y=alt.Y("share:Q").title(None).axis(format="~%", tickCount=4),
            y2=alt.datum(0),
            tooltip=[
                alt.Tooltip("age:Q", title="age from" if bin_ > 1 else "age"),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
        charts.append(_named(bars, each.name, note, look).properties(width=width, height=110))
    return alt.concat(*charts, columns=columns)


def _named(chart: Chart, name: str, note: str, look: Look) -> Chart:
    """A panel below the name of a series in its colour, and what is to be said of it."""
    title = alt.TitleParams(f"{name}: {note}", color=look.colour, fontSize=11, offset=4)
    return chart.properties(title=title)


# -- who trains when -------------------------------------------------------------------------------


def timeline(
    series: Sequence[Series],
    drawn: Sequence[Look],
    *,
    span: Span | None = None,
    whole: bool = True,
    max_clients: int = 25,
    width: int = 900,
) -> Chart:
    """When clients train, transfer and wait, and new versions along the top: a panel per series.

    It shows the first seed of each series. The first view is so long that a slow client trains
    about five times.

    Args:
        series: to draw.
        drawn: look of each.
        span: start and end of the first view, seconds; None = from the start.
        whole: whether there is more than the first view, up to `MAX_ORDERS` orders.
        max_clients: lanes of a panel; of more clients it shows some, evenly spread.
        width: pixels.
    """
    cells = [each.cells[0] for each in series]
    shown = span or (0.0, window(cells) or 1.0)
    active = rows(cells, shown[1])
    clients = sample(active, max_clients)
    panels = [
        _lanes(
            cell, look, clients, shown, MAX_ORDERS // len(cells) if whole else None, len(cells) == 1
        )
        for cell, look in zip(cells, drawn, strict=True)
    ]
    kinds = {kind for bars, marks, _ in panels for kind, *_ in (*bars, *marks)}
    signs = {kind: sign for kind, sign in _SIGNS.items() if kind in kinds}
    signs |= {kind: ("square", "white") for kind in sorted(kinds - {*signs})}
    x = alt.X("start:Q").scale(domain=[*shown], nice=False).title(None).axis(grid=True)
    charts = []
    for each, cell, look, (bars, marks, named) in zip(series, cells, drawn, panels, strict=True):
        last = each is series[-1]
        along = x.title(time_label(cells)) if last else x.axis(labels=False)
        names = alt.Axis(
            values=[*named],
            labelExpr=f"{json.dumps({f'{at:g}': name for at, name in named.items()})}[datum.value]",
            grid=False,
            ticks=False,
            domain=False,
            labelOverlap=False,
        )
        up = alt.Y("low:Q").title(None).axis(names).scale(domain=[-0.6, len(clients) + 0.6])
        about = [alt.Tooltip(f"{name}:N") for name in ("client", "kind", "told")]
        rectangles = (
            alt.Chart(table("kind client low high start end colour opacity told", bars))
            .mark_rect(clip=True, stroke="white", strokeWidth=0.5)
            .encode(
                x=along,
                x2="end:Q",
                y=up,
                y2="high:Q",
                fill=alt.Fill("colour:N").scale(None),
                fillOpacity=alt.FillOpacity("opacity:Q").scale(None),
                tooltip=[*about, alt.Tooltip("start:Q"), alt.Tooltip("end:Q")],
            )
        )
        points = (
            alt.Chart(table("kind client low start told", marks))
            .mark_point(clip=True, strokeWidth=1, size=35, opacity=1)
            .encode(
                x=along,
                y=up,
                shape=_by_sign(alt.Shape("kind:N"), signs, 0),
                fill=_by_sign(alt.Fill("kind:N"), signs, 1),
                stroke=_by_sign(alt.Stroke("kind:N"), signs, 2),
                tooltip=[*about, alt.Tooltip("start:Q", title="t")],
            )
        )
        orders = [
            o for o in cell.history.orders if o.ended == "arrival" and cell.end(o) <= shown[1]
        ]
        versions = sum(t <= shown[1] for t in cell.aggregations)
        share = f"{training_share(cell, shown[1]):.0%} training"
        note = f"{share}, {len(orders)} updates, {versions} versions"
        chart = alt.layer(rectangles, points.add_params(_zoom()))
        height = 9 * max(len(clients), 4) + 10
        charts.append(_named(chart, each.name, note, look).properties(width=width, height=height))
    return alt.vconcat(*charts, spacing=8)


def _by_sign(channel: Any, signs: Mapping[str, tuple[str, str]], part: int) -> Any:
    legend = alt.Legend(orient="bottom", columns=4, symbolStrokeWidth=1, symbolSize=80)
    scale = alt.Scale(domain=[*signs], range=[(*sign, INK)[part] for sign in signs.values()])
    return channel.title(None).scale(scale).legend(legend)


def _lanes(
    cell: Cell, look: Look, clients: Sequence[int], shown: Span, most: int | None, named: bool
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], dict[int | float, str]]:
    """Bars and marks of a panel, and the names along its lanes by their places."""
    own, clusters = by_cluster(cell, clients, shown[1])
    lane = {client: number for number, client in enumerate(own)}
    of_lanes = [order for order in cell.history.orders if order.client in lane]
    orders = [o for o in of_lanes if cell.end(o) >= shown[0] and (most or o.start < shown[1])][
        :most
    ]
    until = orders[-1].start if most and len(orders) == most else max(cell.history.t, shown[1])
    bottom = -0.12 if any(order.parts for order in orders) else -0.42
    bars: list[tuple[Any, ...]] = []
    marks: list[tuple[Any, ...]] = []
    for wait in cell.waits:
        if wait.client in lane and shown[0] <= wait.end and wait.start < until:
            at = lane[wait.client]
            span = (round(wait.start, 3), round(wait.end, 3))
            bars.append(
                ("waits for others", wait.client, at + bottom, at + 0.42, *span, WAITING, 1, "")
            )
    for order in orders:
        at = lane[order.client]
        trains, carries = activity(cell, order)
        pale = bool(clusters) and clusters[at] % 2 == 1
        opacity = 0.35 if order.ended in ("failure", "reject") else 0.5 if pale else 1
        about = _story(order)
        for start, end in trains:
            span = (round(start, 3), round(end, 3))
            bars.append(
                ("trains", order.client, at + bottom, at + 0.42, *span, look.colour, opacity, about)
            )
        for start, end in carries:
            span = (round(start, 3), round(end, 3))
            bars.append(("transfers", order.client, at - 0.4, at - 0.2, *span, _SLIM, 1, about))
        if opacity == 0.35:
            marks.append(
                ("update lost", order.client, at, round(cell.end(order), 3), order.reason[:200])
            )
    top = len(own)
    versions = [t for t in cell.aggregations if shown[0] <= t <= until]
    every = math.ceil(len(versions) / MAX_VERSIONS) or 1
    marks += [("new version", "", top, round(t, 3), "") for t in versions[::every]]
    for mark in cell.marks:
        if mark.kind == "pause":
            continue  # of each, the end is shown: a fresh model
        if shown[0] <= mark.t <= until and (mark.client is None or mark.client in lane):
            at = lane.get(mark.client, top) if mark.client is not None else top
            client = "" if mark.client is None else mark.client
            marks.append(
                (_NAMES.get(mark.kind, mark.kind), client, at, round(mark.t, 3), mark.note)
            )
    if clusters:
        middles = middles_of(clusters, range(len(clusters)))
        return (
            bars,
            marks,
            {round(at, 2): f"cluster {number + 1}" for number, at in middles.items()},
        )
    if named:
        return bars, marks, dict(enumerate(labels(own)))
    return bars, marks, {0: "fast", len(own) - 1: "slow"}


def _story(order: OrderRecord) -> str:
    """An order in words."""
    words = {"arrival": "arrived", "failure": "failed", "reject": "rejected", "": "under way"}
    text = f"given version {order.version}, {words[order.ended]}"
    if order.age is not None:
        text += f" {order.age} versions old"
    if order.loss is not None:
        text += f", loss {order.loss:.4g}"
    return text


# -- one run ---------------------------------------------------------------------------------------


def partition(cell: Cell) -> Chart:
    """Examples of each class on each client, of at most `MAX_CLIENTS` clients."""
    clients = spread_out(len(cell.partition["client"]), MAX_CLIENTS)
    ends = [*clients[1:], len(cell.partition["client"])]
    names = [name for name in cell.partition if name != "client"]
    found = [
        (name, client, end, cell.partition[name][client])
        for name in names
        for client, end in zip(clients, ends, strict=True)
    ]
    chart = alt.Chart(table("class client end examples", found)).mark_rect()
    return chart.encode(
        x=alt.X("client:Q").scale(nice=False).axis(grid=False, tickMinStep=1),
        x2="end:Q",
        y=alt.Y("class:N").sort(names),
        color=alt.Color("examples:Q").scale(range=["white", INK], domainMin=0),
        tooltip=["client:Q", "class:N", "examples:Q"],
    ).properties(width=440, height=min(20 * len(names), 400))


def participation(cell: Cell, look: Look) -> Chart:
    """Aggregated updates and lost orders of each client."""
    history = cell.history
    clients = sorted(
        history.sequences,
        key=lambda client: (-history.participation[client], -history.lost[client], client),
    )
    found = [
        (place, place + 1, client, kind, count[client])
        for kind, count in (("aggregated", history.participation), ("lost", history.lost))
        for place, client in enumerate(clients)
    ]
    scale = alt.Scale(domain=["aggregated", "lost"], range=[look.colour, INK])
    chart = alt.Chart(table("place end client kind orders", found)).mark_bar()
    return chart.encode(
        x=alt.X("place:Q").title("clients, most used first").axis(grid=False, labels=False)
        .scale(nice=False),
        x2="end:Q",
        y=alt.Y("orders:Q"),
        color=alt.Color("kind:N").title(None).scale(scale).legend(orient="bottom"),
        tooltip=["client:N", "kind:N", "orders:Q"],
    ).properties(width=440, height=220)  # fmt: skip


def reports(cell: Cell, look: Look) -> Chart:
    """What the strategy reported of its aggregations; a menu chooses one number."""
    found = [
        (name, *point)
        for name, points in cell.reports.items()
        for point in np.array(points)[spread_out(len(points))]
    ]
    names = [*cell.reports]
    told = alt.param(
        name="told", value=names[0], bind=alt.binding_select(options=names, name="number ")
    )
    chart = alt.Chart(table("name version value", found)).mark_line(color=look.colour)
    return chart.add_params(told, _zoom()).transform_filter("datum.name == told").encode(
        x=alt.X("version:Q"), y=alt.Y("value:Q").title(None), tooltip=["version:Q", "value:Q"]
    ).properties(width=440, height=220)  # fmt: skip
