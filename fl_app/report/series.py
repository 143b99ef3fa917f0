"""The numbers behind the figures: curves, histograms and the rows of the timeline."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_app.record.history import OrderRecord
from fl_app.report.cells import Cell

MAX_POINTS = 400  # of a curve
Floats = NDArray[np.floating[Any]]
Span: TypeAlias = tuple[float, float]  # start and end, seconds


@dataclass(frozen=True)
class Series:
    """One cell, or the seeds of a cell. They share a label, which is the series' name."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def algorithm(self) -> str:
        """The algorithm of its cells."""
        return self.cells[0].algorithm

    @property
    def ages(self) -> Counter[int]:
        """Age -> number of aggregated updates, over all seeds."""
        return sum((cell.history.ages for cell in self.cells), Counter())

    @property
    def on_clients(self) -> bool:
        """Whether its clients evaluated."""
        return any(cell.on_clients for cell in self.cells)


class Curve(NamedTuple):
    """Something over `t`: mean, lowest and highest of the seeds; arrays of one shape ``(n,)``.

    Attributes:
        t: points at which every seed has a value.
        mean: over the seeds.
        low: of the lowest seed.
        high: of the highest seed.
        tails: for each seed with values beyond `t`: its points, and its values there.
    """

    t: Floats
    mean: Floats
    low: Floats
    high: Floats
    tails: tuple[tuple[Floats, Floats], ...] = ()


def group(cells: Sequence[Cell]) -> list[Series]:
    """Group the seeds of each cell, in the order of the cells."""
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.label].append(cell)
    return [Series(label, tuple(members)) for label, members in groups.items()]


def curve(series: Series, x: str = "t", y: str = "accuracy") -> Curve:
    """A metric of the evaluations over one of their fields, by default accuracy over time.

    Seeds are evaluated at different times, so each is interpolated linearly at the union of all
    times. The mean ends where the first seed ends: a mean over the other seeds would jump, and the
    last value of a seed says nothing of later times. The curve is empty if no seed was evaluated.

    Args:
        series: of one cell or its seeds.
        x: "t", "version" or "client_updates"; becomes the curve's `t`.
        y: name of the metric.
    """
    measured = [[e for e in cell.evaluations if y in e.metrics] for cell in series.cells]
    runs = [
        (
            np.array([getattr(e, x) for e in evaluations], float),
            np.array([e.value(y) for e in evaluations], float),
        )
        for evaluations in measured
        if evaluations
    ]
    empty = np.empty(0)
    if not runs:
        return Curve(empty, empty, empty, empty)
    first, last = max(t[0] for t, _ in runs), min(t[-1] for t, _ in runs)
    if first > last:  # no time at which every seed has a value
        return Curve(empty, empty, empty, empty, tuple(runs))
    t = np.unique(np.concatenate([t for t, _ in runs]))
    t = t[(first <= t) & (t <= last)]
    values = np.stack([np.interp(t, times, a) for times, a in runs])
    tails = tuple(_beyond(last, times, a) for times, a in runs if times[-1] > last)
    return Curve(t, values.mean(axis=0), values.min(axis=0), values.max(axis=0), tails)


def client_curve(series: Series, x: str, metric: str) -> Curve:
    """A metric of the evaluations on clients: the mean, and a band to the worst tenth of them.

    The mean over the clients is weighted by their examples; both are means over the seeds, joined
    as in `curve`.
    """
    runs = []
    for cell in series.cells:
        points = [(getattr(e, x), *e.of(metric)) for e in cell.history.client_evaluations]
        if found := [(t, mean, worst) for t, mean, _, worst in points if math.isfinite(mean)]:
            runs.append(np.array(found).T)
    empty = np.empty(0)
    if not runs:
        return Curve(empty, empty, empty, empty)
    t = np.unique(np.concatenate([times for times, _, _ in runs]))
    t = t[(t >= max(run[0][0] for run in runs)) & (t <= min(run[0][-1] for run in runs))]
    mean, worst = (
        np.mean([np.interp(t, run[0], run[row]) for run in runs], axis=0) for row in (1, 2)
    )
    return Curve(t, mean, np.minimum(mean, worst), np.maximum(mean, worst))


def client_metrics(cells: Sequence[Cell]) -> list[str]:
    """Metrics of evaluations on clients that are drawn: score and loss, else the first two."""
    found = [cell.history.client_evaluations[-1].names for cell in cells if cell.on_clients]
    names = list(dict.fromkeys(name for each in found for name in each))
    preferred = dict.fromkeys([*(cell.score.name for cell in cells if cell.score), "loss"])
    return [name for name in preferred if name in names] or names[:2]


def whose(cells: Sequence[Cell]) -> str:
    """Whose score the evaluations have: that of the test set, or the clients' own."""
    tested = any(cell.history.server_evaluations for cell in cells)
    return "clients'" if not tested and any(cell.on_clients for cell in cells) else "test"


def spread_out(size: int, most: int = MAX_POINTS) -> Any:
    """At most so many evenly spread indices of an array, with the first and the last."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(int))


def _beyond(last: float, t: Floats, values: Floats) -> tuple[Floats, Floats]:
    """The part of one seed's curve from `last` on."""
    later = t > last
    return (
        np.concatenate([[last], t[later]]),
        np.concatenate([[np.interp(last, t, values)], values[later]]),
    )


def reached(line: Curve, accuracy: float) -> float | None:
    """Time at which the mean first is at least `accuracy`, or None."""
    at = np.flatnonzero(line.mean >= accuracy)
    return float(line.t[at[0]]) if at.size else None


def learning_phase(series: Sequence[Series], accuracy: float) -> float | None:
    """Seconds in which all series reach `accuracy`; None if a separate plot would show no more.

    It is None if a series never reaches it, if all reach it at once, or if the whole run is not
    much longer.
    """
    curves = [curve(each) for each in series]
    moments = [reached(line, accuracy) for line in curves]
    until = 2.5 * max((moment or 0.0 for moment in moments), default=0.0)
    if None in moments or until == 0.0:
        return None
    return until if 1.2 * until < max(line.t[-1] for line in curves if line.t.size) else None


def histogram(ages: Counter[int], width: int) -> tuple[Floats, Floats]:
    """Share of updates in bins of `width` ages: the first age of each bin, and the shares."""
    if not ages:
        return np.empty(0), np.empty(0)
    counts = np.zeros(max(ages) // width + 1)
    for age, count in ages.items():
        counts[age // width] += count
    return np.arange(counts.size) * float(width), counts / counts.sum()


def seconds(t: float) -> str:
    """Seconds as text."""
    return f"{t:,.0f} s" if t >= 100 else f"{t:.1f} s"


def time_label(cells: Sequence[Cell]) -> str:
    """Title of a time axis."""
    return "wall time (s)" if any(c.on_wall_clock for c in cells) else "virtual time (s)"


def activity(cell: Cell, order: OrderRecord) -> tuple[list[Span], list[Span]]:
    """When a client trained during an order, and when it transferred models.

    If that is unknown, or transfers take no time, it trained all the time.
    """
    start, end = order.start, cell.end(order)
    if order.parts is None:
        return [(start, end)], []
    download, training, upload = order.parts
    if order.beside:
        return [(start, min(start + training, end))], [(start, min(start + download + upload, end))]
    transfers = [(t, min(t + download, end)) for t in (start, *order.fresh)]
    if order.ended == "arrival":
        transfers.append((end - upload, end))
    begins, ends = [t for _, t in transfers], [*(t for t, _ in transfers[1:]), end]
    return [span for span in zip(begins, ends, strict=True) if span[0] < span[1]], transfers


def training_share(cell: Cell, until: float) -> float:
    """Training time of the clients before `until`, divided by that of their orders and waits."""
    orders, waits = [(o.start, cell.end(o)) for o in cell.history.orders], cell.waits
    trained = [span for order in cell.history.orders for span in activity(cell, order)[0]]
    training, time = (
        sum(max(0.0, min(end, until) - start) for start, end in spans)
        for spans in (trained, [*orders, *((wait.start, wait.end) for wait in waits)])
    )
    return training / time if training > 0 else 0.0


def middles_of(clusters: Sequence[int], lanes: Sequence[float]) -> dict[int, float]:
    """The middle of each cluster's lanes; one cluster for each lane."""
    return {
        number: fmean(lane for lane, each in zip(lanes, clusters, strict=True) if each == number)
        for number in dict.fromkeys(clusters)
    }


def by_cluster(cell: Cell, clients: Sequence[int], until: float) -> tuple[list[int], list[int]]:
    """The clients by the last clusters before `until`, the first cluster at the end; and these.

    Clients keep their order within a cluster. Without clusters, nothing changes and none are told.
    """
    found = [clusters for t, clusters in cell.clusters if t <= until]
    if not found:
        return list(clients), []
    of = found[-1]
    sorted_ = sorted(clients, key=lambda client: -of.get(client, 0))
    return sorted_, [of.get(client, 0) for client in sorted_]


def window(cells: Sequence[Cell], num_orders: float = 5.0) -> float:
    """Seconds in which a slow client trains about `num_orders` times, at most the longest cell's.

    The order of a slow client lasts as long as the 90th percentile of all cells' orders.
    """
    durations = [cell.end(order) - order.start for cell in cells for order in cell.history.orders]
    longest = max((cell.history.t for cell in cells), default=0.0)
    if not durations:
        return longest
    return float(min(longest, num_orders * np.percentile(durations, 90)))


def rows(cells: Sequence[Cell], until: float) -> list[int]:
    """Clients that train in any cell before `until` seconds, by mean duration of their orders."""
    durations: dict[int, list[float]] = defaultdict(list)
    active = set()
    for cell in cells:
        for order in cell.history.orders:
            durations[order.client].append(cell.end(order) - order.start)
            if order.start < until:
                active.add(order.client)
    return sorted(active, key=lambda client: (fmean(durations[client]), client))


def sample(clients: Sequence[int], limit: int) -> list[int]:
    """All clients, or `limit` evenly spread ones that include the first and the last."""
    if len(clients) <= limit:
        return list(clients)
    return [clients[round(i)] for i in np.linspace(0, len(clients) - 1, limit)]


def labels(clients: Sequence[int]) -> list[str]:
    """Short names: small ids, or the last digits of node ids that tell them apart."""
    texts = [str(client) for client in clients]
    if all(len(text) <= 5 for text in texts):
        return texts
    digits = 4
    while len({text[-digits:] for text in texts}) < len(set(texts)):
        digits += 1
    return [text if len(text) <= digits else f"..{text[-digits:]}" for text in texts]
