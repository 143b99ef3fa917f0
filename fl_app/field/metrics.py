"""Figures of a run for Prometheus: ``python -m fl_app.field run --metrics PORT server``.

They come from the run's event log, so they are those of the whole run, also after it was resumed.
Every scrape reads what the log has got since the last one.
"""

import json
import re
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fl_app.core.events import (
    Aggregated,
    Arrived,
    Dispatched,
    Evaluated,
    Event,
    Failed,
    Rejected,
    from_json,
)
from fl_app.core.extras import told_if_missing
from fl_app.record.history import History

with told_if_missing():
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector

AGES = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)  # versions
SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
TAIL = 4096  # bytes before the end of what was read, by which a log that was cut back is noticed
REASONS = 40  # different ones; all others are "other": every one is a series for Prometheus
LONGEST = 80  # letters of a reason


class Histogram:
    """Counts values by their upper bound.

    Args:
        bounds: ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """The histogram in Prometheus's form, in which every bound counts all values below it."""
        buckets, below = [], 0
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            below += count
            buckets.append((bound, float(below)))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum)


class Figures:
    """What a run's events add up to."""

    def __init__(self) -> None:
        self.history = History()
        self.failed: Counter[tuple[str, str]] = Counter()  # client and reason
        self.rejected: Counter[tuple[str, str]] = Counter()
        self.ages, self.seconds = Histogram(AGES), Histogram(SECONDS)
        self.measured: Mapping[str, object] = {}
        self.in_flight: dict[int, float] = {}  # order -> when it was given
        self._reasons: set[str] = set()

    def add(self, event: Event) -> None:
        """Take in an event."""
        self.history.emit(event)
        match event:
            case Dispatched():
                self.in_flight[event.order] = event.t
            case Arrived():
                self.ages.add(event.age)
                self.seconds.add(event.t - self.in_flight.pop(event.order, event.t))
            case Failed():
                self.in_flight.pop(event.order, None)
                self.failed[str(event.client), self._reason(event.reason)] += 1
            case Rejected():
                self.in_flight.pop(-1 if event.order is None else event.order, None)
                client = "" if event.client is None else str(event.client)
                self.rejected[client, self._reason(event.reason)] += 1
            case Evaluated():
                self.measured = event.metrics
            case Aggregated():
                pass

    def _reason(self, text: str) -> str:
        """A reason without its numbers and ids: every other one would be a series of its own."""
        words = re.sub(r"[\w.+-]+", lambda w: "N" if re.search(r"\d", w[0]) else w[0], text)
        reason = words[:LONGEST]
        if reason not in self._reasons and len(self._reasons) >= REASONS:
            return "other"
        self._reasons.add(reason)
        return reason


class Run:
    """The figures of a run whose log grows, or is cut back when it is resumed.

    Args:
        log: path of the event log.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._begin()

    def _begin(self) -> None:
        self.figures = Figures()
        self._position, self._tail = 0, b""

    def read(self) -> Figures:
        """The figures of all events so far."""
        with suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._position - len(self._tail))
            if file.read(len(self._tail)) != self._tail:  # it was cut back, and has grown since
                self._begin()
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                self._tail = (self._tail + line)[-TAIL:]
                with suppress(ValueError):  # a line that was damaged
                    self.figures.add(from_json(json.loads(line)))
        return self.figures


class RunCollector(Collector):
    """Gives Prometheus the figures of a run at every scrape.

    Args:
        log: path of the event log.
        nodes: counts the server's nodes by their status; raises OSError if it does not answer.
        memory: bytes of the server's processes, by name.
    """

    def __init__(
        self,
        log: Path,
        nodes: Callable[[], Mapping[str, int]],
        memory: Callable[[], Mapping[str, int]],
    ) -> None:
        self._run, self._nodes, self._memory = Run(log), nodes, memory
        self._lock = threading.Lock()  # two may scrape at once

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            yield from self._of_run(self._run.read())
        try:
            nodes, up = self._nodes(), 1
        except OSError:
            nodes, up = {}, 0
        yield _gauge("fl_app_superlink_up", "1 if the SuperLink answers", up)
        yield _labelled(GaugeMetricFamily, "fl_app_nodes", "Nodes by status", "status", nodes)
        text = "Resident memory of the server's processes"
        memory = self._memory()
        yield _labelled(GaugeMetricFamily, "fl_app_memory_bytes", text, "process", memory)

    def _of_run(self, figures: Figures) -> Iterator[Metric]:
        history = figures.history
        yield _gauge("fl_app_version", "Version of the global model", history.version)
        yield _gauge("fl_app_seconds", "Seconds on the run's clock", history.t)
        arrivals = {str(client): count for client, count in history.arrivals.items()}
        text = "Updates that arrived"
        yield _labelled(CounterMetricFamily, "fl_app_arrivals", text, "client", arrivals)
        for name, text, counts in (
            ("fl_app_failures", "Orders without update", figures.failed),
            ("fl_app_rejections", "Replies that were refused", figures.rejected),
        ):
            family = CounterMetricFamily(name, text, labels=["client", "reason"])
            for labels, count in counts.items():
                family.add_metric(labels, count)
            yield family
        yield figures.ages.family("fl_app_staleness", "Staleness of updates, versions")
        yield figures.seconds.family("fl_app_order_seconds", "From an order to its update")
        traffic = {"down": history.bytes_down, "up": history.bytes_up}
        text = "Bytes of models and updates"
        yield _labelled(CounterMetricFamily, "fl_app_bytes", text, "direction", traffic)
        yield _gauge("fl_app_orders_in_flight", "Orders under way", len(figures.in_flight))
        yield _gauge("fl_app_updates_waiting", "Updates in the buffer", len(history.waiting))
        yield _gauge("fl_app_benched", "Clients that get no order", len(history.benched))
        numbers = {k: v for k, v in figures.measured.items() if isinstance(v, int | float)}
        text = "Last evaluation on the server"
        yield _labelled(GaugeMetricFamily, "fl_app_evaluation", text, "metric", numbers)


def serve(collector: Collector, host: str, port: int) -> None:
    """Let Prometheus scrape ``http://host:port/metrics``, in threads of this process.

    Raises:
        OSError: the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    start_http_server(port, host, registry)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _labelled(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    family = kind(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
