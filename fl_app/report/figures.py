"""The figures of a report: of each one specification, for the page and for PNG, PDF and SVG.

A specification holds its numbers, so that a page needs no other file. In a browser a click on a
name selects its line, the mouse shows numbers, dragging moves a figure, and the wheel with the
shift key zooms. On paper it is the first view.
"""

import csv
import io
import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import altair as alt
import numpy as np

from fl_app.record.measures import mean_age
from fl_app.record.score import ACCURACY, Score
from fl_app.report.cells import Cell
from fl_app.report.series import (
    Curve,
    Series,
    client_curve,
    curve,
    histogram,
    reached,
    seconds,
    spread_out,
    time_label,
    whose,
)
from fl_app.report.style import GRID, INK, MUTED, Look

Chart: TypeAlias = Any  # of Altair: a single one, layers, or several side by side
Curves: TypeAlias = Callable[[Series, str, str], Curve]  # of a series, an axis and a metric

MAX_CLIENTS = 1000  # in the picture of a partition


STYLE = {
    "aria": False,
    "background": "white",
    "font": "sans-serif",
    "view": {"stroke": None},
    "title": {"anchor": "start", "fontSize": 13},
    "axis": {
        "gridColor": GRID,
        "domainColor": MUTED,
        "tickColor": MUTED,
        "titleFontWeight": "normal",
    },
    "legend": {"labelFontSize": 11, "labelLimit": 0, "symbolStrokeWidth": 2},
}


def specification(chart: Chart) -> dict[str, Any]:
    """A figure as Vega-Lite, in the style of this project."""
    spec: dict[str, Any] = chart.to_dict(validate=False)  # our own, and a test draws each
    return {**spec, "config": STYLE}


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
        offset=36,  # room for the name of the axis
    )
    colours = alt.Scale(domain=[*names], range=[look.colour for look in drawn])
    dashes = alt.Scale(domain=[*names], range=[[*look.dashes] for look in drawn])
    look_of: dict[str, Any] = {
        "color": alt.Color("cell:N", title=None, scale=colours, legend=legend),
        "opacity": alt.when(picked).then(alt.value(1)).otherwise(alt.value(0.1)),
    }
    dash = alt.StrokeDash("cell:N", title=None, scale=dashes, legend=legend)
    view = alt.Scale(zero=True) if until is None else alt.Scale(domain=[0, until], nice=False)
    x = alt.X("x:Q", title=None, scale=view).axis(grid=False)
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
        lines.append(hover.add_params(picked, over, zoom()))
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
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns.split())
    for row in rows:
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])
    return alt.InlineData(values=text.getvalue(), format=alt.CsvDataFormat(type="csv"))


def _told(series: Series) -> str:
    """A series' name in a legend."""
    number = len(series.cells)
    return f"{series.name} ({number} seeds)" if number > 1 else series.name


def zoom() -> alt.Parameter:
    """What lets dragging move a figure along its horizontal axis, and the wheel zoom."""
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
        bars = bars.properties(width=width, height=110)
        charts.append(panel(bars, f"{each.name}: {note}", look))
    return alt.concat(*charts, columns=columns)


def panel(chart: Chart, title: str, look: Look) -> Chart:
    """The panel of a series, below a title in its colour."""
    about = alt.TitleParams(title, color=look.colour, fontSize=11, offset=4)
    return chart.properties(title=about)


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
        x=alt.X("client:Q", title="client").scale(nice=False).axis(grid=False, tickMinStep=1),
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
    found = []
    for place, client in enumerate(clients):
        used, lost = history.participation[client], history.lost[client]
        found += [
            (place, place + 1, client, "aggregated", 0, used, used),
            (place, place + 1, client, "lost", used, used + lost, lost),
        ]
    scale = alt.Scale(domain=["aggregated", "lost"], range=[look.colour, INK])
    chart = alt.Chart(table("place end client kind low high orders", found)).mark_rect()
    return chart.encode(
        x=alt.X("place:Q", title="clients, most used first").axis(grid=False, labels=False),
        x2="end:Q",
        y=alt.Y("low:Q", title="orders"),
        y2="high:Q",
        color=alt.Color("kind:N", title=None, scale=scale).legend(orient="bottom"),
        tooltip=["client:N", "kind:N", "orders:Q"],
    ).properties(width=440, height=220)


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
    return chart.add_params(told, zoom()).transform_filter("datum.name == told").encode(
        x=alt.X("version:Q"), y=alt.Y("value:Q").title(None), tooltip=["version:Q", "value:Q"]
    ).properties(width=440, height=220)  # fmt: skip
