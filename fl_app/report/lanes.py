"""The timeline of a run: a lane for each client with its training, transfers and waits."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import altair as alt
import pandas as pd

from fl_app.core.events import Clustered, Event, Rejected
from fl_app.record.history import OrderRecord
from fl_app.report.cells import Cell, Series, headline
from fl_app.report.figures import Chart, data, panel, thin, time_label, zoom
from fl_app.report.style import INK, WAITING

Span: TypeAlias = tuple[float, float]  # start and end, seconds

MAX_ORDERS = 4000  # of all panels of a figure
MAX_VERSIONS = 1000  # of a panel
NUM_ORDERS = 5  # of a slow client in the first view
LANE = 9  # pixels
LOST = ("failure", "reject")  # ends of orders whose update is lost
SLIM = "#555555"  # of transfers; stands out beside a bar of any colour

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
    """An activity of a client over some time; `low` and `high` are places along the lanes."""

    kind: str
    client: int
    low: float
    high: float
    start: float
    end: float
    colour: str
    opacity: float
    note: str


class Sign(NamedTuple):
    """A moment; `low` is its place along the lanes."""

    kind: str
    client: int | None
    low: float
    start: float
    note: str


class Lanes(NamedTuple):
    """What a panel shows, and the names along its lanes by their places."""

    bars: list[Bar]
    signs: list[Sign]
    names: dict[float, str]


def timeline(series: Sequence[Series], *, max_clients: int = 25, width: int = 900) -> Chart:
    """When clients train, transfer and wait, and new versions along the top: a panel per series.

    It shows the first seed of each series. Lanes are sorted by cluster, if there are clusters, and
    by the mean duration of their client's orders. The first view begins with the first order, which
    real nodes get seconds after the start, and ends after about five orders of a slow client.

    Args:
        series: to draw; each has orders.
        max_clients: lanes of a panel; of more clients it shows an evenly spread selection.
        width: pixels.
    """
    cells = [member.cells[0] for member in series]
    spans = pd.DataFrame(
        [(o.client, o.start, cell.end(o) - o.start) for cell in cells for o in cell.history.orders],
        columns=["client", "start", "seconds"],
    )
    # The order of a slow client lasts as long as the 90th percentile of all.
    longest = max(cell.history.t for cell in cells)
    view = min(longest, NUM_ORDERS * float(spans.seconds.quantile(0.9))) or 1.0
    begin = float(spans.start.min())
    end = begin + view
    active = spans.client[spans.start < end]
    pace = spans.groupby("client").seconds.mean()
    active_pace = pace[pace.index.isin(active)].sort_values(kind="stable")
    clients = [*thin(active_pace, max_clients).index]
    panels = [_lanes(member, clients, end, MAX_ORDERS // len(cells)) for member in series]
    kinds = {"trains"}  # a legend without an entry has no size, and cannot be drawn
    kinds |= {bar.kind for lanes in panels for bar in lanes.bars}
    kinds |= {sign.kind for lanes in panels for sign in lanes.signs}
    signs = {kind: sign for kind, sign in SIGNS.items() if kind in kinds}
    charts = []
    for member, lanes in zip(series, panels, strict=True):
        title = time_label(cells) if member is series[-1] else None
        x = alt.X("start:Q", title=title).axis(labels=title is not None)
        y = alt.Y("low:Q", title=None).axis(_axis(lanes.names))
        chart = _panel(
            lanes,
            signs,
            x.scale(domain=[begin, end], nice=False),
            y.scale(domain=[-0.6, len(clients) + 0.6]),
        ).properties(width=width, height=LANE * (max(len(clients), 4) + 1))
        charts.append(panel(chart, member, _summary(member.cells[0], end)))
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


def _panel(lanes: Lanes, kinds: dict[str, tuple[str, str]], x: alt.X, y: alt.Y) -> Chart:
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("client", "kind", "note")]
    bars = alt.Chart(data(pd.DataFrame(lanes.bars, columns=Bar._fields))).encode(
        x=x,
        x2="end:Q",
        y=y,
        y2="high:Q",
        fill=alt.Fill("colour:N", scale=None),
        fillOpacity=alt.FillOpacity("opacity:Q", scale=None),
        tooltip=[*tooltip, alt.Tooltip("start:Q"), alt.Tooltip("end:Q")],
    )
    legend = alt.Legend(orient="bottom", columns=4, symbolStrokeWidth=1, symbolSize=80)
    by_kind: dict[str, Any] = {"field": "kind", "type": "nominal", "title": None, "legend": legend}

    def scale(values: Sequence[str]) -> alt.Scale:
        return alt.Scale(domain=[*kinds], range=[*values])

    signs = pd.DataFrame(lanes.signs, columns=Sign._fields).astype({"client": "Int64"})
    points = alt.Chart(data(signs)).encode(
        x=x,
        y=y,
        shape=alt.Shape(**by_kind, scale=scale([shape for shape, _ in kinds.values()])),
        fill=alt.Fill(**by_kind, scale=scale([filling for _, filling in kinds.values()])),
        stroke=alt.Stroke(**by_kind, scale=scale([INK for _ in kinds])),
        tooltip=[*tooltip, alt.Tooltip("start:Q", title="t")],
    )
    return alt.layer(
        bars.mark_rect(clip=True, stroke="white", strokeWidth=0.5),
        points.mark_point(clip=True, strokeWidth=1, size=35, opacity=1).add_params(zoom()),
    )


def _summary(cell: Cell, until: float) -> str:
    """Numbers of a run until a time; training is a share of the time of all orders and waits."""
    orders = cell.history.orders
    updates = sum(o.ended == "arrival" and cell.end(o) <= until for o in orders)
    versions = sum(t <= until for t in cell.history.aggregations)
    trained = [span for order in orders for span in activity(cell, order)[0]]
    busy = [(o.start, cell.end(o)) for o in orders] + [wait[1:] for wait in cell.history.waits]
    training, time = (
        sum(max(0.0, min(end, until) - start) for start, end in spans) for spans in (trained, busy)
    )
    share = training / time if training > 0 else 0.0
    return f"{share:.0%} training, {updates} updates, {versions} versions"


def activity(cell: Cell, order: OrderRecord) -> tuple[list[Span], list[Span]]:
    """When a client trained during an order, and when it transferred models.

    If its parts are unknown, or transfers take no time, the client trained all the time.
    """
    start, end = order.start, cell.end(order)
    if order.parts is None or not order.transfers:
        return [(start, end)], []
    download, training, upload = order.parts
    if order.beside:
        return [(start, min(start + training, end))], [(start, min(start + download + upload, end))]
    transfers = [(t, min(t + download, end)) for t in (start, *order.fresh)]
    if order.ended == "arrival":
        transfers.append((end - upload, end))
    begins, ends = [t for _, t in transfers], [*(t for t, _ in transfers[1:]), end]
    return [span for span in zip(begins, ends, strict=True) if span[0] < span[1]], transfers


def _lanes(series: Series, clients: Sequence[int], view_end: float, limit: int) -> Lanes:
    """What a panel shows: the orders of the first view, or the first `limit` orders."""
    cell, colour = series.cells[0], series.look.colour
    groups = [clusters for t, clusters in cell.history.clusters if t <= view_end]
    cluster_of = groups[-1] if groups else {}
    ordered = sorted(clients, key=lambda client: -cluster_of.get(client, 0))  # first cluster on top
    lane = {client: number for number, client in enumerate(ordered)}
    orders = [o for o in cell.history.orders if o.client in lane]
    until = max(view_end, orders[limit].start if len(orders) > limit else cell.history.t)
    orders = [order for order in orders if order.start <= until]
    bottom = -0.12 if any(order.transfers for order in orders) else -0.42

    def bar(
        kind: str, client: int, span: Span, colour: str, opacity: float = 1, note: str = ""
    ) -> Bar:
        at = lane[client]
        low, high = (-0.4, -0.2) if kind == "transfers" else (bottom, 0.42)
        return Bar(kind, client, at + low, at + high, *span, colour, opacity, note)

    waits = (wait for wait in cell.history.waits if wait.client in lane and wait.start <= until)
    bars = [bar("waits for others", wait.client, wait[1:], WAITING) for wait in waits]
    for order in orders:
        trains, transfers = activity(cell, order)
        is_pale = cluster_of.get(order.client, 0) % 2 == 1
        opacity = 0.35 if order.ended in LOST else 0.5 if is_pale else 1
        note = _order_note(order)
        bars += [bar("trains", order.client, span, colour, opacity, note) for span in trains]
        bars += [bar("transfers", order.client, span, SLIM) for span in transfers]
    top = len(ordered)
    versions = [t for t in cell.history.aggregations if t <= until]
    times = thin(pd.Series(versions, dtype=float), MAX_VERSIONS)
    signs = [Sign("new version", None, top, t, "") for t in times]
    signs += [
        Sign("update lost", o.client, lane[o.client], cell.end(o), headline(o.reason))
        for o in orders
        if o.ended in LOST
    ]
    for mark in cell.history.marks:
        client = getattr(mark, "client", None)
        owner = client if isinstance(client, int) else None
        # Of a pause only the end is shown: a fresh model.
        if mark.kind != "pause" and mark.t <= until and (owner is None or owner in lane):
            at = top if owner is None else lane[owner]
            signs.append(Sign(NAMES.get(mark.kind, mark.kind), owner, at, mark.t, _note(mark)))
    names: dict[float, str] = {0: "fast", top - 1: "slow"}
    if cluster_of:
        members = defaultdict(list)
        for client, at in lane.items():
            members[cluster_of.get(client, 0)].append(at)
        names = {round(fmean(ats), 2): f"cluster {number + 1}" for number, ats in members.items()}
    return Lanes(bars, signs, names)


def _order_note(order: OrderRecord) -> str:
    """A description of an order."""
    verbs = {"arrival": "arrived", "failure": "failed", "reject": "rejected", "": "under way"}
    text = f"given version {order.version}, {verbs[order.ended]}"
    if order.age is not None:
        text += f" {order.age} versions old"
    if order.loss is not None:
        text += f", loss {order.loss:.4g}"
    return text


def _note(event: Event) -> str:
    """Why a reply was late, or how large clusters are."""
    if isinstance(event, Rejected):
        return headline(event.reason)
    if isinstance(event, Clustered):
        sizes = [size for _, size in sorted(Counter(event.cluster).items())]
        return f"version {event.version}, clusters of {', '.join(map(str, sizes))} clients"
    return ""
