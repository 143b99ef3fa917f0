"""Figures for Prometheus, as Prometheus's own parser reads them."""

import json
import re
from typing import cast

import promql_parser
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fl_app.core.events import (
    Aggregated,
    Arrived,
    Benched,
    Dispatched,
    Evaluated,
    Event,
    Failed,
    Rejected,
)
from fl_app.field.control import SuperLink
from fl_app.field.make import FILES
from fl_app.field.metrics import RunCollector
from fl_app.field.runs import Supervisor

EVENTS = [
    Evaluated(0.0, 0, {"accuracy": 0.1, "loss": 2.3}),
    *(Dispatched(0.0, client, client, 0, bytes=100) for client in range(4)),
    Arrived(3.0, 0, 0, 0, age=0, loss=0.5, bytes=40),
    Failed(4.0, 1, 1, 0, "deadline passed"),
    Rejected(5.0, 2, 2, 0, "norm=8.91e+06 is above guard.max_norm=10"),
    Dispatched(5.0, 0, 4, 0, bytes=100),
    Aggregated(6.0, 1, [0], [0], [0]),
    Arrived(45.0, 0, 4, 0, age=1, loss=0.4, bytes=40),
    Aggregated(45.0, 2, [0], [4], [1]),
    Dispatched(45.0, 0, 5, 2, bytes=100),
    Arrived(45.5, 0, 5, 2, age=0, loss=0.4, bytes=40),
    Benched(46.0, 2, 5, "norm=8.91e+06 is above guard.max_norm=10"),
]


def collector(events: list[Event]) -> RunCollector:
    """Of a supervised run in which so much has happened."""
    run = Supervisor(cast("SuperLink", None))
    for event in events:
        run.history.emit(event)
    return RunCollector(run, lambda: {"online": 3})


def scraped(source: RunCollector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(source)
    text = generate_latest(registry).decode()
    return {
        sample.name + "".join(f" {v}" for _, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_run_in_figures() -> None:
    found = scraped(collector(EVENTS))
    wanted = {
        "fl_app_version": 2,
        "fl_app_seconds": 46,
        "fl_app_arrivals_total 0": 3,
        "fl_app_losses_total 1": 1,
        "fl_app_losses_total 2": 1,
        "fl_app_staleness_bucket 0": 1,
        "fl_app_staleness_bucket 1": 2,
        "fl_app_staleness_bucket +Inf": 2,
        "fl_app_staleness_count": 2,
        "fl_app_staleness_sum": 1,
        "fl_app_bytes_total down": 600,
        "fl_app_bytes_total up": 120,
        "fl_app_orders_in_flight": 1,
        "fl_app_updates_waiting": 1,
        "fl_app_benched": 1,
        "fl_app_evaluation accuracy": 0.1,
        "fl_app_superlink_up": 1,
        "fl_app_nodes online": 3,
    }
    assert {name: found.get(name) for name in wanted} == wanted


DASHBOARD = json.loads((FILES / "server" / "grafana.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_the_dashboard_asks_for_figures_that_exist() -> None:
    known = {name.split()[0] for name in scraped(collector(EVENTS))}
    assert len(QUERIES) > 8
    for query in QUERIES:
        promql_parser.parse(query)  # raises ValueError where Prometheus would
        names = set(re.findall(r"\bfl_app_\w+", query))
        assert names, query
        assert names <= known, query
