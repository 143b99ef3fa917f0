"""The part of a cell that an interactive timeline shows: as much as a browser draws quickly."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fl_app.record.history import OrderRecord
from fl_app.report.cells import Cell, Mark, Wait
from fl_app.report.series import rows, sample

MAX_CLIENTS = 60
MAX_ORDERS = 4000
MAX_VERSIONS = 2000


@dataclass(frozen=True)
class Timeline:
    """A part of what happened in a cell.

    Attributes:
        clients: from fast to slow.
        num_clients: clients that trained in the whole cell.
        since: start, seconds.
        until: end, seconds.
        whole: whether it covers the whole cell.
        orders: of the clients, that were under way between start and end.
        waits: of the clients, between start and end.
        marks: of the clients and of the server, between start and end.
        versions: times at which versions were published, one of `every`.
        every: 1 = all versions.
    """

    clients: Sequence[int]
    num_clients: int
    since: float
    until: float
    whole: bool
    orders: Sequence[OrderRecord]
    waits: Sequence[Wait]
    marks: Sequence[Mark]
    versions: Sequence[float]
    every: int


def timeline(
    cell: Cell,
    span: tuple[float, float] | None = None,
    *,
    max_clients: int = MAX_CLIENTS,
    max_orders: int = MAX_ORDERS,
    max_versions: int = MAX_VERSIONS,
) -> Timeline:
    """Choose what a timeline shows.

    Of more than `max_clients` clients it shows some, evenly spread from fast to slow. Of more than
    `max_orders` orders it shows the first ones, in which a model learns most; on the wall clock it
    shows the last ones, for a user who watches the run.

    Args:
        cell: to show.
        span: start and end in seconds; None = as much as fits.
        max_clients: at least 2.
        max_orders: at least 1.
        max_versions: at least 1.
    """
    since, until = span or (0.0, cell.history.t)
    active = rows([cell], math.inf)
    clients = sample(active, max_clients)
    chosen = set(clients)
    orders = [
        order
        for order in cell.history.orders
        if order.client in chosen and cell.end(order) >= since and order.start <= until
    ]
    if len(orders) > max_orders:
        if cell.on_wall_clock:
            orders.sort(key=cell.end)
            orders = orders[-max_orders:]
            since = max(since, cell.end(orders[0]))
        else:
            orders.sort(key=lambda order: order.start)
            until = min(until, orders[max_orders].start)
            orders = orders[:max_orders]
    versions = [t for t in cell.aggregations if since <= t <= until]
    every = max(1, math.ceil(len(versions) / max_versions))
    return Timeline(
        clients=clients,
        num_clients=len(active),
        since=since,
        until=until,
        whole=(since, until) == (0.0, cell.history.t),
        orders=orders,
        waits=[w for w in cell.waits if w.client in chosen and w.end >= since and w.start <= until],
        marks=[
            mark
            for mark in cell.marks
            if (mark.client is None or mark.client in chosen) and since <= mark.t <= until
        ],
        versions=versions[::every],
        every=every,
    )
