"""Figures of a run for Prometheus: ``python -m fl_app.field run --metrics PORT server``.

They come from the run's event log, so they are those of the whole run, also after it was resumed.
Every scrape reads what the log has got since the last one.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fl_app.core.errors import RunError
from fl_app.core.events import from_json
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

AGES = (0, 1, 2, 3, 5, 10, 20, 50, 100)  # versions


class RunCollector(Collector):
    """Gives Prometheus the figures of a run at every scrape.

    Args:
        log: path of the event log, which grows, or is cut back when its run is resumed.
        nodes: counts the server's nodes by their status; raises OSError if it does not answer,
            and RunError if it refuses.
    """

    def __init__(self, log: Path, nodes: Callable[[], Mapping[str, int]]) -> None:
        self._log, self._nodes = log, nodes
        self._lock = threading.Lock()  # two may scrape at once
        self._begin()

    def _begin(self) -> None:
        self._history = History()
        self._position, self._last = 0, b""

    def _read(self) -> None:
        with suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._position - len(self._last))
            if file.read(len(self._last)) != self._last:  # it was cut back, and may have grown
                self._begin()
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position, self._last = self._position + len(line), line
                with suppress(ValueError):  # a line that was damaged
                    self._history.emit(from_json(json.loads(line)))

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            self._read()
            yield from self._of_run(self._history)
        try:
            nodes, up = self._nodes(), 1
        except (OSError, RunError):
            nodes, up = {}, 0
        yield GaugeMetricFamily("fl_app_superlink_up", "1 if the SuperLink answers", up)
        yield _labelled(GaugeMetricFamily, "nodes", "Nodes", "status", nodes)

    def _of_run(self, run: History) -> Iterator[Metric]:
        under_way = [order for order in run.current.values() if not order.ended]
        for name, text, value in (
            ("version", "Version of the global model", run.version),
            ("seconds", "Seconds on the run's clock", run.t),
            ("orders_in_flight", "Orders under way", len(under_way)),
            ("updates_waiting", "Updates in the buffer", len(run.waiting)),
            ("benched", "Clients that get no order", len(run.benched)),
        ):
            yield GaugeMetricFamily(f"fl_app_{name}", text, value)
        for name, text, label, values in (
            ("arrivals", "Updates that arrived", "client", run.arrivals),
            ("losses", "Orders that failed or were refused", "client", run.lost),
            ("bytes", "Sent", "direction", {"down": run.bytes_down, "up": run.bytes_up}),
        ):
            yield _labelled(CounterMetricFamily, name, text, label, values)
        below = [(str(b), float(sum(n for a, n in run.ages.items() if a <= b))) for b in AGES]
        below.append(("+Inf", float(run.ages.total())))
        total = sum(age * count for age, count in run.ages.items())
        yield HistogramMetricFamily("fl_app_staleness", "Of aggregated updates", below, total)
        last = run.server_evaluations[-1].metrics if run.server_evaluations else {}
        yield _labelled(GaugeMetricFamily, "evaluation", "On the server", "metric", last)


def serve(collector: Collector, host: str, port: int) -> None:
    """Let Prometheus scrape ``http://host:port/metrics``, in threads of this process.

    Raises:
        OSError: the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    start_http_server(port, host, registry)


def _labelled(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[Any, float],
) -> Metric:
    family = kind(f"fl_app_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], value)
    return family
