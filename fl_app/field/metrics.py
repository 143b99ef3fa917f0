"""Figures of a run for Prometheus: ``python -m fl_app.field run --metrics PORT server``.

They come from the run's event log, so they are those of the whole run, also after it was resumed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fl_app.core.errors import RunError
from fl_app.core.extras import told_if_missing
from fl_app.field.runs import Supervisor
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
        run: is supervised.
        nodes: counts the server's nodes by their status; raises OSError if it does not answer,
            and RunError if it refuses.
    """

    def __init__(self, run: Supervisor, nodes: Callable[[], Mapping[str, int]]) -> None:
        self._run, self._nodes = run, nodes

    def collect(self) -> Iterator[Metric]:
        with self._run.lock:  # figures of one moment
            figures = [*_of_run(self._run.history)]
        yield from figures
        try:
            nodes, up = self._nodes(), 1
        except (OSError, RunError):
            nodes, up = {}, 0
        yield GaugeMetricFamily("fl_app_superlink_up", "1 if the SuperLink answers", up)
        yield _labelled(GaugeMetricFamily, "nodes", "Nodes", "status", nodes)


def serve(run: Supervisor, nodes: Callable[[], Mapping[str, int]], host: str, port: int) -> None:
    """Let Prometheus scrape ``http://host:port/metrics``, in threads of this process.

    Args:
        run: as of `RunCollector`.
        nodes: likewise.
        host: to listen on.
        port: to listen on.

    Raises:
        OSError: the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(RunCollector(run, nodes))
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


def _of_run(run: History) -> Iterator[Metric]:
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
