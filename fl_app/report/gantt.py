"""The interactive timeline: orders, waits, losses and other events of the clients."""

import html
from collections.abc import Sequence
from typing import Any, TypeAlias

from fl_app.record.history import OrderRecord
from fl_app.report.cells import Cell, Mark
from fl_app.report.charts import MAX_NAMED, Figure, choice, faint, layout_of, rounded
from fl_app.report.series import activity, by_cluster, labels, middles_of, time_label
from fl_app.report.style import INK, MUTED, WAITING, Look
from fl_app.report.timeline import Timeline

ROOMY = 15  # orders of a slow client in the first view of a timeline
EXPIRED = "deadline passed"
CLUSTER_GAP = 0.6  # lanes between two clusters

Bar: TypeAlias = tuple[float, float, float, int, str]  # place, start, end, client, story

# Kind of a mark -> its symbol and its name.
_SIGNS = {
    "failure": ("x-thin", "failed"),
    "expiry": ("hourglass-open", "deadline passed"),
    "rejected": ("diamond-open", "rejected"),
    "reject": ("circle-open", "late or duplicate reply"),
    "pause": ("triangle-left-open", "paused"),
    "refresh": ("triangle-up", "gets a fresh model"),
    "checkpoint": ("square", "checkpoint"),
    "cluster": ("star", "clusters formed"),
    "recall": ("triangle-down-open", "recalled"),
}


def timeline_of(cell: Cell, shown: Timeline, look: Look, zoom: float) -> Figure:
    """When clients trained and waited, what was lost, and new versions along the top.

    Args:
        cell: to draw.
        shown: the part of the cell to draw.
        look: of the cell.
        zoom: seconds of the first view: the first ones, on the wall clock the last ones.
    """
    clients, clusters = by_cluster(cell, shown.clients, shown.since + zoom)
    # A gap between clusters.
    apart = [CLUSTER_GAP * (clusters[0] - cluster) for cluster in clusters] or [0.0] * len(clients)
    rows = [row + gap for row, gap in enumerate(apart)]
    place = dict(zip(clients, rows, strict=True))
    slim = any(order.parts for order in shown.orders)
    kinds: dict[str, list[OrderRecord]] = {"arrival": [], "lost": [], "": []}
    for order in shown.orders:
        kinds[order.ended if order.ended in kinds else "lost"].append(order)
    hatched = {"shape": "/", "fgcolor": look.colour, "bgcolor": "white", "size": 5, "solidity": 0.4}
    traces = [
        _bars(
            "waits for others",
            [(place[w.client], w.start, w.end, w.client, "waits") for w in shown.waits],
            {"color": WAITING},
            slim,
        ),
        _bars("trains", _orders(cell, kinds["arrival"], place), {"color": look.colour}, slim),
        _bars("trains in vain", _orders(cell, kinds["lost"], place), {"pattern": hatched}, slim),
        _bars(
            "under way", _orders(cell, kinds[""], place), {"color": faint(look.colour, "80")}, slim
        ),
        _bars("transfers", _orders(cell, shown.orders, place, 1), {"color": MUTED}, slim, 1),
    ]
    top = max(rows, default=-1) + 1.2
    traces += _signs(cell, shown, place, top)
    height = max(top, 4)
    edge = 0.02 * height
    times = [t for each in shown.versions for t in (each, each, None)]
    ends = [y for _ in shown.versions for y in (top - 0.4, top + 0.04 * height, None)]
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": rounded(times),
            "y": ends,
            "line": {"color": INK, "width": 1},
            "name": "new version"
            if shown.every == 1
            else f"new version (1 of {shown.every} shown)",
            "hovertemplate": "new version at %{x:,.2f} s<extra></extra>",
        }
    )
    layout = layout_of(time_label([cell]), "", height=int(90 + max(13 * height, 150)))
    named = len(clients) <= MAX_NAMED and not clusters
    places: list[float] = [0, len(clients) - 1]
    texts = ["fast", "slow"]
    if clusters:
        middles = middles_of(clusters, rows)
        places, texts = [*middles.values()], [f"cluster {each + 1}" for each in middles]
    layout["yaxis"].update(
        fixedrange=True,
        range=[-0.6 - edge, top + 0.08 * height],
        tickvals=rows if named else places,
        ticktext=labels(clients) if named else texts,
        showgrid=False,
        title={"text": "client" if named else "clients", "standoff": 10},
    )
    layout["barmode"] = "overlay"
    layout["hovermode"] = "closest"
    layout["legend"].update(traceorder="normal")
    layout["dragmode"] = "zoom"
    whole = [shown.since, shown.until]
    if cell.on_wall_clock:
        label, part = f"last {zoom:,.3g} s", [whole[1] - zoom, whole[1]]
    else:
        label, part = f"first {zoom:,.3g} s", [whole[0], whole[0] + zoom]
    layout["xaxis"]["range"] = whole
    if 1.5 * zoom < whole[1] - whole[0]:
        layout["xaxis"]["range"] = part
        layout["updatemenus"] = [
            choice(
                [
                    {"label": text, "method": "relayout", "args": [{"xaxis.range": span}]}
                    for text, span in ((label, part), ("all", whole))
                ]
            )
        ]
    traces = [trace for trace in traces if trace["x"]]
    return {"data": traces, "layout": layout}


def _orders(
    cell: Cell, orders: Sequence[OrderRecord], place: dict[int, float], what: int = 0
) -> list[Bar]:
    """A bar for each span of training, or with `what` 1 of transfers."""
    return [
        (place[order.client], start, end, order.client, _story(order))
        for order in orders
        for start, end in activity(cell, order)[what]
    ]


def _story(order: OrderRecord) -> str:
    """An order in words."""
    words = {"arrival": "arrived", "failure": "failed", "reject": "rejected", "": "under way"}
    text = f"given version {order.version}<br>{words[order.ended]}"
    if order.age is not None:
        text += f" {order.age} versions old"
    if order.loss is not None:
        text += f", loss {order.loss:.4g}"
    return text + (f": {html.escape(order.reason[:200])}" if order.reason else "")


def _bars(
    title: str, spans: Sequence[Bar], marker: dict[str, Any], slim: bool, below: int = 0
) -> dict[str, Any]:
    """Bars of one kind; slim ones leave room below, for those of transfers."""
    offset, width = ((0.13, 0.56), (-0.31, 0.2))[below] if slim else (0.0, 0.82)
    return {
        "type": "bar",
        "orientation": "h",
        "y": [row + offset for row, *_ in spans],
        "base": rounded(start for _, start, *_ in spans),
        "x": rounded(end - start for _, start, end, *_ in spans),
        "customdata": [[str(client), f"{end:,.2f}", text] for *_, end, client, text in spans],
        "marker": {**marker, "line": {"color": "white", "width": 0.5}},
        "width": width,
        "name": title,
        "hovertemplate": (
            "client %{customdata[0]}<br>%{base:,.2f} to %{customdata[1]} s<br>"
            "%{customdata[2]}<extra></extra>"
        ),
    }


def _signs(
    cell: Cell, shown: Timeline, place: dict[int, float], top: float
) -> list[dict[str, Any]]:
    """Markers of lost orders, and of events that end no order."""
    points: dict[str, list[Mark]] = {kind: [] for kind in _SIGNS}
    for order in shown.orders:
        if order.ended == "failure":
            kind = "expiry" if order.reason == EXPIRED else "failure"
        elif order.ended == "reject":
            kind = "rejected"
        else:
            continue
        points[kind].append(Mark(kind, cell.end(order), order.client, order.reason[:200]))
    for mark in shown.marks:
        points.setdefault(mark.kind, []).append(mark)
    traces = []
    for kind, marks in points.items():
        symbol, title = _SIGNS.get(kind, ("circle", kind))
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": rounded(mark.t for mark in marks),
                "y": [place.get(mark.client, top) for mark in marks],  # type: ignore[arg-type]
                "customdata": [[_whose(mark), html.escape(mark.note)] for mark in marks],
                "marker": {
                    "symbol": symbol,
                    "size": 8,
                    "color": INK,
                    "line": {"color": INK, "width": 1.5},
                },
                "name": title,
                "hovertemplate": (
                    f"%{{customdata[0]}}{title}<br>%{{x:,.2f}} s<br>"
                    "%{customdata[1]}<extra></extra>"
                ),
            }
        )
    return traces


def _whose(mark: Mark) -> str:
    return "" if mark.client is None else f"client {mark.client}: "
