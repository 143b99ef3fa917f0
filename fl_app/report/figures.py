"""The figures of a report; each has one specification, for the page and for PNG, PDF and SVG.

A specification holds its numbers, so that a page needs no other file. In a browser a click on a
name selects its line, the mouse shows numbers, dragging moves a figure, and the wheel with the
shift key zooms. PNG and PDF show the first view.
"""

import csv
import io
import json
import math
import warnings
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import altair as alt
import numpy as np
import pandas as pd
import vl_convert

from fl_app.core.score import ACCURACY, Score
from fl_app.record.summary import first_at, mean_age
from fl_app.report.cells import Cell, Series
from fl_app.report.style import GRID, INK, MUTED

Chart: TypeAlias = Any  # of Altair: a single one, layers, or several side by side

MAX_CLIENTS = 1000  # in the picture of a partition
MAX_POINTS = 400  # of a curve

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
_CHANNELS: list[Any] = ["color", "strokeDash", "shape", "fill", "stroke"]

# One parameter moves and zooms all panels of a figure, on purpose.
warnings.filterwarnings("ignore", "Automatically deduplicated selection parameter")


def specification(chart: Chart) -> dict[str, Any]:
    """A figure as Vega-Lite, in the style of this project."""
    return {**chart.to_dict(validate=False), "config": STYLE}  # our own, and tests draw each


def independent(chart: Chart) -> Chart:
    """Figures side by side, each with its own legend."""
    return chart.resolve_scale(**dict.fromkeys(_CHANNELS, "independent"))


def data(frame: pd.DataFrame) -> alt.InlineData:
    """Numbers of a figure as CSV, a fourth of the bytes of a list of objects."""
    text = frame.to_csv(index=False, float_format="%.6g")
    return alt.InlineData(values=text, format=alt.CsvDataFormat(type="csv"))


def thin(frame: Any, limit: int = MAX_POINTS) -> Any:
    """At most `limit` evenly spread rows of a frame or a series, with the first and the last."""
    size = len(frame)
    return frame.iloc[np.unique(np.linspace(0, size - 1, min(size, limit)).round().astype(int))]


def zoom() -> alt.Parameter:
    """Lets dragging move a figure along its horizontal axis, and the wheel zoom."""
    return alt.selection_interval(
        name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.shiftKey]"
    )


def panel(chart: Chart, series: Series, note: str) -> Chart:
    """The panel of a series, below a title in its colour."""
    title = f"{series.name}: {note}"
    heading = alt.TitleParams(title, color=series.look.colour, fontSize=11, offset=4)
    return chart.properties(title=heading)


def png(spec: dict[str, Any]) -> bytes:
    """A picture."""
    return vl_convert.vegalite_to_png(spec, scale=1.6)


def save(chart: Chart, path: Path, *, pdf: bool = False) -> None:
    """Write a figure as PNG, and as PDF.

    Args:
        chart: to write.
        path: of the PNG; its folder is created.
        pdf: whether to write the PDF beside it; an existing one is always replaced.
    """
    path.parent.mkdir(exist_ok=True)
    spec = specification(chart)
    path.write_bytes(png(spec))
    file = path.with_suffix(".pdf")
    if pdf or file.exists():
        file.write_bytes(vl_convert.vegalite_to_pdf(spec))


def seconds(t: float) -> str:
    """Seconds as text."""
    return f"{t:,.0f} s" if t >= 100 else f"{t:.1f} s"


def time_label(cells: Sequence[Cell]) -> str:
    """Title of a time axis."""
    return "wall time (s)" if any(c.on_wall_clock for c in cells) else "virtual time (s)"


# -- curves ----------------------------------------------------------------------------------------


def curve(series: Series, over: str, metric: str, *, on_clients: bool = False) -> pd.DataFrame:
    """A metric of the evaluations: the mean over the seeds, with a band.

    Seeds are evaluated at different times, so each is interpolated linearly at the union of all
    times. The curve has the times at which every seed has a value, since a mean over fewer would
    jump.

    Args:
        series: of one cell or its seeds.
        over: "t", "version" or "client_updates".
        metric: name of the metric.
        on_clients: whether to use the clients' evaluations, with a band to the mean of the worst
            tenth of clients; else the band reaches from the lowest to the highest seed.

    Returns:
        A row per point: its place in ``x``, ``mean``, ``low`` and ``high``.
    """
    runs = []
    names = [f"{metric}_mean", f"{metric}_worst_decile"] if on_clients else [metric, metric]
    for cell in series.cells:
        evaluations = cell.history.client_evaluations if on_clients else cell.evaluations
        points = {getattr(e, over): [*map(e.value, names)] for e in evaluations}
        run = pd.DataFrame.from_dict(points, orient="index", columns=["mean", "worst"]).dropna()
        if len(run):
            runs.append(run.astype(float))
    if not runs:
        return pd.DataFrame(columns=["x", "mean", "low", "high"])
    table = pd.concat(runs, axis=1).sort_index()
    table = table.interpolate("index", limit_area="inside").dropna()
    means, worst = (table.loc[:, table.columns == name] for name in ("mean", "worst"))
    mean = means.mean(axis=1)
    band = pd.concat([mean, worst.mean(axis=1)], axis=1) if on_clients else means
    line = pd.DataFrame({"mean": mean, "low": band.min(axis=1), "high": band.max(axis=1)})
    return line.rename_axis("x").reset_index()


def client_metrics(cells: Sequence[Cell]) -> list[str]:
    """The metrics on clients to draw: score and loss, else the first two."""
    evaluations = [cell.history.client_evaluations for cell in cells]
    names = list(dict.fromkeys(name for runs in evaluations if runs for name in runs[-1].names))
    preference = dict.fromkeys([*(cell.score.name for cell in cells if cell.score), "loss"])
    return [name for name in preference if name in names] or names[:2]


def learning(
    series: Sequence[Series],
    metrics: Sequence[str],
    target: float,
    *,
    on_clients: bool = False,
    width: int = 440,
) -> Chart:
    """Metrics over time, versions or client updates, with one legend.

    Accuracies have a line at the target, and the legend says when each series reaches it; for
    evaluations on clients, the legend has the last one.

    Args:
        series: to draw; those without evaluations are left out.
        metrics: to draw side by side.
        target: accuracy in (0, 1].
        on_clients: as of `curve`.
        width: of each, pixels.
    """
    cells = [cell for member in series for cell in member.cells]
    axes = {"t": time_label(cells), "version": "versions", "client_updates": "client updates"}
    aims = ACCURACY.name in metrics and not on_clients
    on_server = any(cell.history.server_evaluations for cell in cells)
    owner = "test" if on_server and not on_clients else "clients'"
    lines = []
    looks = {}
    for member in series:
        last = [e for cell in member.cells for e in cell.history.client_evaluations[-1:]]
        if on_clients and not last:
            continue
        number = len(member.cells)
        name = f"{member.name} ({number} seeds)" if number > 1 else member.name
        if aims:
            found = [first_at(cell.evaluations, target) for cell in member.cells]
            times = [evaluation.t for evaluation in found if evaluation is not None]
            if not times:
                name += f": never {target:.0%}"
            elif len(times) == number:
                name += f": {target:.0%} first at {seconds(fmean(times))}"
            else:
                name += f": {len(times)} of them reach {target:.0%}"
        elif on_clients:
            form = Score(metrics[0]).form
            means = [f"{metrics[0]}_{of}" for of in ("mean", "worst_decile")]
            average, worst = (fmean(e.value(key) for e in last) for key in means)
            name += f": {form.format(average)}, worst decile {form.format(worst)}"
        looks[name] = member.look
        for metric, axis in product(metrics, axes):
            line = thin(curve(member, axis, metric, on_clients=on_clients))
            lines.append(line.assign(cell=name, over=axis, metric=metric))
    points = pd.concat(lines)
    over = alt.param(
        name="over",
        value="t",
        bind=alt.binding_radio(options=[*axes], labels=[*axes.values()], name="over "),
    )
    selection = alt.selection_point(name="picked", fields=["cell"], bind="legend")
    legend = alt.Legend(
        orient="bottom",
        direction="vertical",
        columns=1 + (len(looks) > 5),
        symbolType="stroke",
        symbolSize=500,
        offset=36,  # room for the name of the axis
    )
    colours = alt.Scale(domain=[*looks], range=[look.colour for look in looks.values()])
    dashes = alt.Scale(domain=[*looks], range=[[*look.dashes] for look in looks.values()])
    dash = alt.StrokeDash("cell:N", title=None, scale=dashes, legend=legend)
    charts = []
    for metric in metrics:
        is_share = Score(metric).is_share
        rows = points[points.metric == metric].drop(columns="metric")
        base = alt.Chart(data(rows)).transform_filter("datum.over == over")
        curves = base.encode(
            x=alt.X("x:Q", title=None, scale=alt.Scale(zero=True)).axis(grid=False),
            y=alt.Y("mean:Q", title=f"{owner} {metric}").axis(format="~%" if is_share else "~g"),
            color=alt.Color("cell:N", title=None, scale=colours, legend=legend),
            opacity=alt.when(selection).then(alt.value(1)).otherwise(alt.value(0.1)),
        )
        layers = [curves.mark_line(clip=True).encode(strokeDash=dash)]
        if (rows.low < rows.high).any():
            band = curves.mark_area(clip=True, fillOpacity=0.18, strokeWidth=0)
            layers.insert(0, band.encode(y=alt.Y("low:Q"), y2="high:Q"))
        if aims and metric == ACCURACY.name:
            rule = alt.Chart(data(pd.DataFrame({"mean": [target]})))
            layers.append(rule.mark_rule(color=MUTED, strokeDash=[4, 3]).encode(y="mean:Q"))
        form = ".1%" if is_share else ".4~g"
        hover = curves.mark_point(clip=True, filled=True, size=120).encode(
            opacity=alt.value(0),
            tooltip=[
                alt.Tooltip("cell:N"),
                alt.Tooltip("x:Q", title="over", format=",.5~g"),
                *(alt.Tooltip(f"{name}:Q", format=form) for name in ("mean", "low", "high")),
            ],
        )
        layers.append(hover.add_params(selection, over, zoom()))
        text = alt.ExprRef(f"{json.dumps(axes)}[over]")
        axis_title = alt.Chart(data(pd.DataFrame({"x": [0]}))).mark_text(
            text=text, color=INK, clip=False
        )
        layers.append(axis_title.encode(x=alt.value(width / 2), y=alt.value(336)))
        charts.append(alt.layer(*layers).properties(width=width, height=300))
    return alt.hconcat(*charts)


# -- staleness -------------------------------------------------------------------------------------


def staleness(series: Sequence[Series], *, columns: int = 4, width: int = 220) -> Chart:
    """Ages of the aggregated updates: a histogram for each series, on a common axis.

    Args:
        series: to draw.
        columns: histograms side by side.
        width: of each, pixels.
    """
    oldest = max((max(item.ages, default=0) for item in series), default=0)
    bin_ = math.ceil((oldest + 1) / 30)
    charts = []
    for item in series:
        counts = pd.Series(item.ages, dtype=float)
        bars = counts.groupby(counts.index // bin_ * bin_).sum().rename_axis("age") / counts.sum()
        bars = bars.rename("share").reset_index()
        bars = bars.assign(left=bars.age - 0.4, right=bars.age + bin_ - 0.6)
        note = f"mean {mean_age(item.ages):.1f}, max {max(item.ages)}" if item.ages else "none"
        chart = (
            alt.Chart(data(bars))
            .mark_bar(color=item.look.colour)
            .encode(
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
        )
        chart = chart.properties(width=width, height=110)
        charts.append(panel(chart, item, note))
    return alt.concat(*charts, columns=columns)


# -- one run ---------------------------------------------------------------------------------------


def partition(cell: Cell) -> Chart:
    """Examples of each class on each client, of at most `MAX_CLIENTS` clients."""
    (_, *names), *lines = csv.reader(io.StringIO(cell.partition))
    rows = thin(pd.DataFrame(lines).astype(int), MAX_CLIENTS).to_numpy()
    columns = {"client": rows[:, 0], "end": [*rows[1:, 0], len(lines)]}
    columns = {name: np.repeat(values, len(names)) for name, values in columns.items()}
    cells = pd.DataFrame({**columns, "class": names * len(rows), "examples": rows[:, 1:].ravel()})
    chart = alt.Chart(data(cells)).mark_rect()
    return chart.encode(
        x=alt.X("client:Q", title="client").scale(nice=False).axis(grid=False, tickMinStep=1),
        x2="end:Q",
        y=alt.Y("class:N").sort(names),
        color=alt.Color("examples:Q").scale(range=["white", INK], domainMin=0),
        tooltip=["client:Q", "class:N", "examples:Q"],
    ).properties(width=440, height=min(20 * len(names), 400))
