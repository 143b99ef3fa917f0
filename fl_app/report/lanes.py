"""The timeline of a run: a lane for each client with its training, transfers and waits."""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt

from fl_app.record.history import OrderRecord
from fl_app.report.cells import Cell
from fl_app.report.figures import Chart, panel, table, zoom
from fl_app.report.series import (
    Series,
    Span,
    activity,
    by_cluster,
    labels,
    middles_of,
    rows,
    sample,
    time_label,
    training_share,
    window,
)
from fl_app.report.style import INK, WAITING, Look

MAX_ORDERS = 4000  # of all panels of a page
MAX_VERSIONS = 1000  # of a panel
LANE = 9  # pixels
LOST = ("failure", "reject")  # how orders ended whose update is lost
SLIM = "#555555"  # of transfers, beside a bar of any colour

# What is shown -> its shape and its filling in the legend.
SIGNS = {
    "trains": ("square", "#7a7a7a"),
    "waits for others": ("square", WAITING),
    "transfers": ("M-1,-0.2L1,-0.2L1,0.2L-1,0.2Z", SLIM),
    "new version": ("M0,-1L0,1", INK),
    "update lost": ("M-0.6,-0.6L0.6,0.6M0.6,-0.6L-0.6,0.6", INK),
    "gets a fresh model": ("triangle-up", "white"),
    "clusters formed": ("diamond", INK),
    "recalled": ("triangle-down", "white"),
    "late or duplicate reply": ("circle", "white"),
    "checkpoint": ("square", "white"),
}
NAMES = {  # of the kinds of marks that are not their own name
    "refresh": "gets a fresh model",
    "cluster": "clusters formed",
    "recall": "recalled",
    "reject": "late or duplicate reply",
}


class Bar(NamedTuple):
    """A client that does something for some time; `low` and `high` are places along the lanes."""

    kind: str
    client: int
    low: float
    high: float
    start: float
    end: float
    colour: str
    opacity: float
    told: str


class Sign(NamedTuple):
    """A moment; `low` is its place along the lanes."""

    kind: str
    client: str
    low: float
    start: float
    told: str


class Lanes(NamedTuple):
    """What a panel shows, and the names along its lanes by their places."""

    bars: list[Bar]
    signs: list[Sign]
    names: dict[float, str]


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
        span: start and end of the first view, seconds; None = from the first order on, which
            real nodes get seconds after the start.
        whole: whether there is more than the first view, up to `MAX_ORDERS` orders.
        max_clients: lanes of a panel; of more clients it shows some, evenly spread.
        width: pixels.
    """
    cells = [each.cells[0] for each in series]
    begin = min((o.start for cell in cells for o in cell.history.orders), default=0.0)
    shown = span or (begin, begin + (window(cells) or 1.0))
    clients = sample(rows(cells, shown[1]), max_clients)
    most = MAX_ORDERS // len(cells) if whole else None
    panels = [
        _lanes(cell, look.colour, clients, shown, most)
        for cell, look in zip(cells, drawn, strict=True)
    ]
    if len(cells) == 1 and not cells[0].clusters:
        panels = [panels[0]._replace(names=dict(enumerate(labels(clients))))]
    kinds = {"trains"}  # a legend without an entry has no size, and cannot be drawn
    kinds |= {bar.kind for lanes in panels for bar in lanes.bars}
    kinds |= {sign.kind for lanes in panels for sign in lanes.signs}
    known = {kind: SIGNS.get(kind, ("square", "white")) for kind in (*SIGNS, *sorted(kinds))}
    known = {kind: sign for kind, sign in known.items() if kind in kinds}
    height = LANE * max(len(clients), 4) + LANE
    charts = []
    for each, cell, look, lanes in zip(series, cells, drawn, panels, strict=True):
        title = time_label(cells) if each is series[-1] else None
        x = alt.X("start:Q", title=title).axis(labels=title is not None)
        y = alt.Y("low:Q", title=None).axis(_axis(lanes.names))
        chart = _panel(
            lanes,
            known,
            x.scale(domain=[*shown], nice=False),
            y.scale(domain=[-0.6, len(clients) + 0.6]),
        ).properties(width=width, height=height)
        charts.append(panel(chart, f"{each.name}: {_summary(cell, shown[1])}", look))
    return alt.vconcat(*charts, spacing=8)


def _axis(names: dict[float, str]) -> alt.Axis:
    """An axis with these names at these places."""
    texts = json.dumps({f"{place:g}": name for place, name in names.items()})
    return alt.Axis(
        values=[*names],
        labelExpr=f"{texts}[datum.value]",
        labelOverlap=False,
        grid=False,
        ticks=False,
        domain=False,
    )


def _panel(lanes: Lanes, known: dict[str, tuple[str, str]], x: alt.X, y: alt.Y) -> Chart:
    about = [alt.Tooltip(f"{name}:N") for name in ("client", "kind", "told")]
    bars = alt.Chart(table(" ".join(Bar._fields), lanes.bars)).encode(
        x=x,
        x2="end:Q",
        y=y,
        y2="high:Q",
        fill=alt.Fill("colour:N", scale=None),
        fillOpacity=alt.FillOpacity("opacity:Q", scale=None),
        tooltip=[*about, alt.Tooltip("start:Q"), alt.Tooltip("end:Q")],
    )
    legend = alt.Legend(orient="bottom", columns=4, symbolStrokeWidth=1, symbolSize=80)
    by_kind: dict[str, Any] = {"field": "kind", "type": "nominal", "title": None, "legend": legend}

    def scale(values: Sequence[str]) -> alt.Scale:
        return alt.Scale(domain=[*known], range=[*values])

    signs = alt.Chart(table(" ".join(Sign._fields), lanes.signs)).encode(
        x=x,
        y=y,
        shape=alt.Shape(**by_kind, scale=scale([shape for shape, _ in known.values()])),
        fill=alt.Fill(**by_kind, scale=scale([filling for _, filling in known.values()])),
        stroke=alt.Stroke(**by_kind, scale=scale([INK for _ in known])),
        tooltip=[*about, alt.Tooltip("start:Q", title="t")],
    )
    return alt.layer(
        bars.mark_rect(clip=True, stroke="white", strokeWidth=0.5),
        signs.mark_point(clip=True, strokeWidth=1, size=35, opacity=1).add_params(zoom()),
    )


def _summary(cell: Cell, until: float) -> str:
    """What happened until then, in numbers."""
    updates = sum(o.ended == "arrival" and cell.end(o) <= until for o in cell.history.orders)
    versions = sum(t <= until for t in cell.aggregations)
    share = training_share(cell, until)
    return f"{share:.0%} training, {updates} updates, {versions} versions"


def _lanes(cell: Cell, colour: str, clients: Sequence[int], shown: Span, most: int | None) -> Lanes:
    """What a panel shows: the orders of the first view, or the `most` first ones from there on."""
    own, clusters = by_cluster(cell, clients, shown[1])
    lane = {client: number for number, client in enumerate(own)}
    orders = [o for o in cell.history.orders if o.client in lane and cell.end(o) >= shown[0]]
    until = shown[1]
    if most is not None:
        until = max(until, orders[most].start if len(orders) > most else cell.history.t)
    orders = [order for order in orders if order.start <= until]
    bottom = -0.12 if any(order.parts for order in orders) else -0.42
    bars = [
        Bar("waits for others", client, at + bottom, at + 0.42, start, end, WAITING, 1, "")
        for client, start, end in cell.waits
        if client in lane and shown[0] <= end and start <= until
        for at in [lane[client]]
    ]
    for order in orders:
        at = lane[order.client]
        trains, carries = activity(cell, order)
        pale = bool(clusters) and clusters[at] % 2 == 1
        opacity = 0.35 if order.ended in LOST else 0.5 if pale else 1
        story = _story(order)
        bars += [
            Bar("trains", order.client, at + bottom, at + 0.42, *span, colour, opacity, story)
            for span in trains
        ]
        bars += [
            Bar("transfers", order.client, at - 0.4, at - 0.2, *span, SLIM, 1, "")
            for span in carries
        ]
    top = len(own)
    versions = [t for t in cell.aggregations if shown[0] <= t <= until]
    every = math.ceil(len(versions) / MAX_VERSIONS) or 1
    signs = [Sign("new version", "", top, t, "") for t in versions[::every]]
    signs += [
        Sign("update lost", str(o.client), lane[o.client], cell.end(o), o.reason[:200])
        for o in orders
        if o.ended in LOST
    ]
    for kind, t, whose, note in cell.marks:
        # Of a pause, its end is shown: a fresh model.
        if kind != "pause" and shown[0] <= t <= until and (whose is None or whose in lane):
            at = top if whose is None else lane[whose]
            client = "" if whose is None else str(whose)
            signs.append(Sign(NAMES.get(kind, kind), client, at, t, note))
    names: dict[float, str] = {0: "fast", top - 1: "slow"}
    if clusters:
        middles = middles_of(clusters, range(top))
        names = {round(at, 2): f"cluster {number + 1}" for number, at in middles.items()}
    return Lanes(bars, signs, names)


def _story(order: OrderRecord) -> str:
    """An order in words."""
    words = {"arrival": "arrived", "failure": "failed", "reject": "rejected", "": "under way"}
    text = f"given version {order.version}, {words[order.ended]}"
    if order.age is not None:
        text += f" {order.age} versions old"
    if order.loss is not None:
        text += f", loss {order.loss:.4g}"
    return text
