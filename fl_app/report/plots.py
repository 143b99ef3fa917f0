"""The interactive figures of a report, except the timeline."""

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fl_app.record.measures import mean_age
from fl_app.record.score import Score
from fl_app.report.cells import Cell
from fl_app.report.charts import (
    MAX_NAMED,
    Figure,
    choice,
    dots,
    faint,
    few,
    layout_of,
    line_of,
    means,
    plain,
    remark,
    rounded,
    spread_out,
)
from fl_app.report.series import (
    Curve,
    Series,
    client_curve,
    curve,
    histogram,
    labels,
    time_label,
    whose,
)
from fl_app.report.style import INK, MUTED, Look
from fl_app.report.table import Table

MAX_COLUMNS = 1000  # clients in the picture of a partition
MAX_BARS = 400  # clients drawn as bars; more are drawn as an area


def learning(
    series: Sequence[Series], looks: Sequence[Look], y: str, target: float | None = None
) -> Figure:
    """A metric over seconds, versions or client updates, seeds as a band.

    Args:
        series: to draw.
        looks: of each.
        y: name of the metric.
        target: accuracy in (0, 1] to mark.
    """
    share = Score(y).is_share
    axes = {"t": time_label([c for s in series for c in s.cells]), "version": "versions"}
    axes["client_updates"] = "client updates"
    traces: list[dict[str, Any]] = []
    data: dict[str, list[tuple[Any, Any]]] = {x: [] for x in axes}
    for each, look in zip(series, looks, strict=True):
        style = {"legendgroup": each.name, "name": html.escape(each.name)}
        if len(each.cells) > 1:
            unnamed = {**style, "hoverinfo": "skip", "showlegend": False}
            band = {"fill": "toself", "fillcolor": faint(look.colour)}
            traces.append({**line_of(look, width=0), **unnamed, **band})
            traces.append({**line_of(look, width=0.7), **unnamed, "opacity": 0.6})
        traces.append(
            {
                **line_of(look),
                **style,
                **dots(max(len(cell.evaluations) for cell in each.cells)),
                "hovertemplate": f"%{{y:{'.1%' if share else '.4g'}}}",
            }
        )
        for x in axes:
            line = _thin(curve(each, x, y))
            if len(each.cells) > 1:
                around = np.concatenate([line.t, line.t[::-1]])
                data[x].append((around, np.concatenate([line.high, line.low[::-1]])))
                data[x].append(_joined(line.tails))
            data[x].append((line.t, line.mean))
    for trace, (along, up) in zip(traces, data["t"], strict=True):
        trace.update(x=plain(along), y=plain(up))
    buttons = [
        {
            "label": title,
            "method": "update",
            "args": [
                {"x": [plain(a) for a, _ in data[x]], "y": [plain(b) for _, b in data[x]]},
                {"xaxis.title.text": title},
            ],
        }
        for x, title in axes.items()
    ]
    several = len(series) > 1
    owner = whose([cell for each in series for cell in each.cells])
    layout = layout_of(axes["t"], f"{owner} {y}", height=330, legend=several)
    layout["yaxis"].update(tickformat="~%" if share else "", rangemode="tozero")
    layout["xaxis"]["rangemode"] = "tozero"
    layout["updatemenus"] = [choice(buttons)]
    layout["hovermode"] = "x unified" if len(series) <= 10 else "closest"
    if target is not None:
        layout["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": target,
                "y1": target,
                "line": {"color": MUTED, "width": 1, "dash": "dash"},
            }
        ]
    return {"data": traces, "layout": layout}


def on_clients(series: Sequence[Series], looks: Sequence[Look], y: str) -> Figure:
    """What clients measured on their own data: the mean, and a band to the worst tenth.

    Args:
        series: to draw.
        looks: of each.
        y: name of the metric.
    """
    share, several = Score(y).is_share, len(series) > 1
    form = ".1%" if share else ".4g"
    traces: list[dict[str, Any]] = []
    for each, look in zip(series, looks, strict=True):
        line = client_curve(each, y)
        at = spread_out(line.t.size)
        t, mean, worst = line.t[at], line.mean[at], line.worst[at]
        style = {"legendgroup": each.name, "name": html.escape(each.name)}
        band = {"fill": "toself", "fillcolor": faint(look.colour), "hoverinfo": "skip"}
        around = plain(np.concatenate([t, t[::-1]])), plain(np.concatenate([mean, worst[::-1]]))
        traces.append(
            {
                **line_of(look, width=0),
                **style,
                **band,
                "x": around[0],
                "y": around[1],
                "showlegend": False,
            }
        )
        traces.append(
            {
                **line_of(look),
                **style,
                **dots(t.size),
                "x": plain(t),
                "y": plain(mean),
                "customdata": plain(worst),
                "hovertemplate": f"%{{y:{form}}}, worst decile %{{customdata:{form}}}",
            }
        )
    title = time_label([cell for each in series for cell in each.cells])
    layout = layout_of(title, f"clients' {y}", height=330, legend=several)
    layout["yaxis"].update(tickformat="~%" if share else "", rangemode="tozero")
    layout["xaxis"]["rangemode"] = "tozero"
    layout["hovermode"] = "x unified" if len(series) <= 10 else "closest"
    return {"data": traces, "layout": layout}


def staleness(series: Sequence[Series], looks: Sequence[Look]) -> Figure:
    """Ages of aggregated updates: a histogram of one series, cumulative lines of several."""
    several = len(series) > 1
    title = "share of updates of at most this age" if several else "share of updates"
    layout = layout_of("age of the update (versions)", title, legend=several)
    layout["yaxis"].update(tickformat="~%", rangemode="tozero")
    eldest = max((max(each.ages, default=0) for each in series), default=0)
    if eldest <= 12:
        layout["xaxis"]["dtick"] = 1
    traces: list[dict[str, Any]] = []
    for each, look in zip(series, looks, strict=True):
        ages = each.ages
        if not ages:
            continue
        if not several:
            width = math.ceil((max(ages) + 1) / 40)
            first, share = histogram(ages, width)
            upto = "" if width == 1 else f" to %{{x}} + {width - 1}"
            traces.append(
                {
                    "type": "bar",
                    "x": plain(first),
                    "y": plain(share),
                    "marker": {"color": look.colour},
                    "hovertemplate": f"age %{{x}}{upto}: %{{y:.1%}}<extra></extra>",
                }
            )
            layout["bargap"] = 0.15
            mean, oldest = mean_age(ages), max(ages)
            layout["annotations"] = [remark(f"mean {mean:.1f}, max {oldest}")]
            continue
        first, share = histogram(ages, 1)
        x, y = few(first, np.cumsum(share))
        traces.append(
            {
                **line_of(look),
                "x": [*x, eldest],
                "y": [*y, 1.0],
                "line": {**line_of(look)["line"], "shape": "hv"},
                "mode": "lines",
                "name": html.escape(each.name),
                "hovertemplate": "%{y:.1%} have an age of at most %{x}",
            }
        )
    return {"data": traces, "layout": layout}


def partition(cell: Cell) -> Figure:
    """Examples of each class on each client, of at most `MAX_COLUMNS` clients."""
    names = [name for name in cell.partition if name != "client"]
    shown = spread_out(len(cell.partition["client"]), MAX_COLUMNS)
    counts = [np.array(cell.partition[name])[shown].astype(int).tolist() for name in names]
    layout = layout_of("clients", "classes", height=130 + min(20 * len(names), 400), legend=False)
    layout["yaxis"].update(type="category", showgrid=False, autorange="reversed")
    layout["xaxis"].update(showgrid=False)
    trace = {
        "type": "heatmap",
        "x": shown.tolist(),
        "y": [html.escape(name) for name in names],
        "z": counts,
        "zmin": 0,
        "colorscale": [[0, "white"], [1, INK]],
        "colorbar": {"title": {"text": "examples", "side": "right"}, "thickness": 12},
        "hovertemplate": "client %{x}, class %{y}: %{z} examples<extra></extra>",
    }
    return {"data": [trace], "layout": layout}


def participation(cell: Cell, look: Look) -> Figure:
    """Aggregated updates and lost orders of each client."""
    history = cell.history
    clients = sorted(
        history.sequences,
        key=lambda client: (-history.participation[client], -history.lost[client], client),
    )
    used = [history.participation[client] for client in clients]
    lost = [history.lost[client] for client in clients]
    layout = layout_of("clients, most used first", "orders", legend=lost != [0] * len(lost))
    layout["yaxis"]["rangemode"] = "tozero"
    if len(clients) > MAX_BARS:  # an area draws thousands as fast
        traces: list[dict[str, Any]] = [
            {
                "type": "scatter",
                "mode": "lines",
                "x": x,
                "y": y,
                "line": {"color": colour, "width": 1, "shape": "hv"},
                "fill": "tozeroy",
                "name": title,
            }
            for values, colour, title in (
                (used, look.colour, "aggregated"),
                (lost, INK, "lost"),
            )
            for x, y in [few(np.arange(len(values)), np.array(values))]
        ]
    else:
        texts = [str(client) for client in clients]
        traces = [
            {
                "type": "bar",
                "x": list(range(len(clients))),
                "y": values,
                "customdata": texts,
                "marker": marker,
                "name": title,
                "hovertemplate": f"client %{{customdata}}: %{{y}} {title}<extra></extra>",
            }
            for values, marker, title in (
                (used, {"color": look.colour}, "aggregated"),
                (lost, {"pattern": {"shape": "/", "fgcolor": INK, "bgcolor": "white"}}, "lost"),
            )
        ]
        layout["barmode"] = "stack"
        named = len(clients) <= MAX_NAMED
        layout["xaxis"].update(
            tickvals=list(range(len(clients))) if named else [],
            ticktext=labels(clients) if named else [],
            showgrid=False,
        )
    return {"data": [trace for trace in traces if any(trace["y"])], "layout": layout}


def traffic(cell: Cell, look: Look) -> Figure:
    """Megabytes sent to and received from clients over time, at the evaluations."""
    layout = layout_of(time_label([cell]), "MB (10<sup>6</sup> bytes)")
    traces = [
        {
            **line_of(look),
            "x": rounded(cell.metrics["t"]),
            "y": [value / 1e6 for value in cell.metrics[column]],
            "line": {"color": look.colour, "width": 2, "dash": dash},
            "name": title,
            "hovertemplate": "%{y:,.2f} MB",
        }
        for column, title, dash in (
            ("bytes_down", "to clients", "solid"),
            ("bytes_up", "from clients", "dot"),
        )
        if column in cell.metrics
    ]
    layout["hovermode"] = "x unified"
    return {"data": traces, "layout": layout}


def reports(cell: Cell, look: Look) -> Figure:
    """What the strategy reported of its aggregations; a menu chooses one number."""
    names = list(cell.reports)
    layout = layout_of("version", html.escape(names[0]), legend=False)
    traces = []
    for number, key in enumerate(names):
        versions, values = zip(*cell.reports[key], strict=True)
        x, y = means(versions, values)
        traces.append(
            {
                **line_of(look),
                **dots(len(x)),
                "x": x,
                "y": y,
                "name": html.escape(key),
                "visible": number == 0,
                "hovertemplate": "version %{x}: %{y:.4g}<extra></extra>",
            }
        )
    if len(names) > 1:
        buttons = [
            {
                "label": html.escape(key.replace("_", " ")),
                "method": "update",
                "args": [
                    {"visible": [other == key for other in names]},
                    {"yaxis.title.text": html.escape(key)},
                ],
            }
            for key in names
        ]
        layout["updatemenus"] = [{**choice(buttons), "type": "dropdown"}]
    return {"data": traces, "layout": layout}


def final(table: Table, series: Sequence[Series], looks: Sequence[Look], score: Score) -> Figure:
    """Last score of each series: every seed, and mean and sample standard deviation."""
    found = [
        (label, look, each, row, spread)
        for each, look, (row, spread) in zip(series, looks, table.of_series(), strict=True)
        if row.final_score is not None and row.score == score
        for label in [html.escape(row.cell)]
    ]
    value = "%{x:.2%}" if score.is_share else "%{x:.4g}"
    traces: list[dict[str, Any]] = []
    for label, look, each, row, spread in found:
        seeds = [cell.scores[-1] for cell in each.cells]
        if spread is not None:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": seeds,
                    "y": [label] * len(seeds),
                    "marker": {"color": look.colour, "size": 8, "symbol": "circle-open"},
                    "hovertemplate": f"{value}<extra>one seed</extra>",
                }
            )
        error = {} if spread is None else {"array": [spread.final_score], "color": look.colour}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [row.final_score],
                "y": [label],
                "marker": {"color": look.colour, "size": 11, "symbol": "diamond"},
                "error_x": {"type": "data", "thickness": 2, "width": 6, **error},
                "hovertemplate": f"{value}<extra></extra>",
            }
        )
    owner = whose([cell for each in series for cell in each.cells])
    title = f"last {owner} {score.name}"
    layout = layout_of(title, "", height=110 + 26 * len(found), legend=False)
    layout["xaxis"].update(tickformat="~%" if score.is_share else "", tickangle=0, nticks=6)
    layout["yaxis"].update(autorange="reversed", automargin=True, type="category")
    return {"data": traces, "layout": layout}


def _joined(tails: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The tails as one line with gaps between them."""
    if not tails:
        return [], []
    gap = [math.nan]
    t, values = zip(*tails, strict=True)
    return tuple(  # type: ignore[return-value]
        np.concatenate([part for tail in parts for part in (tail[spread_out(tail.size)], gap)])
        for parts in (t, values)
    )


def _thin(line: Curve) -> Curve:
    """At most `MAX_POINTS` points of a curve, which include the first and the last."""
    at = spread_out(line.t.size)
    return Curve(line.t[at], line.mean[at], line.low[at], line.high[at], line.tails)
