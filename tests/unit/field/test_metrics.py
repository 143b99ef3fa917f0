"""Figures for Prometheus, as Prometheus's own parser reads them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    to_json,
)
from fl_app.field.kit import FILES
from fl_app.field.metrics import RunCollector

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


def write(path: Path, events: list[Event], end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(to_json(event)) + end for event in events))


def collector(path: Path, nodes: Callable[[], Any] = lambda: {"online": 3}) -> RunCollector:
    return RunCollector(path, nodes)


def scraped(source: RunCollector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(source)
    text = generate_latest(registry).decode()
    return {
        sample.name + "".join(f" {v}" for _, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_run_in_figures(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, EVENTS)
    found = scraped(collector(path))
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


def test_only_whole_lines_count_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    source = collector(path)
    write(path, EVENTS[:6])
    assert scraped(source)["fl_app_arrivals_total 0"] == 1
    write(path, [EVENTS[10]], end="")  # is being written
    assert scraped(source)["fl_app_arrivals_total 0"] == 1
    with path.open("a") as file:
        file.write("\n{damaged\n")
    assert scraped(source)["fl_app_arrivals_total 0"] == 2


def test_a_resumed_run_cuts_its_log_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    source = collector(path)
    write(path, EVENTS)
    assert scraped(source)["fl_app_arrivals_total 0"] == 3
    path.write_text("")
    write(path, EVENTS[:6])
    assert scraped(source)["fl_app_arrivals_total 0"] == 1
    path.write_text("")
    write(path, EVENTS[:1] * 50)  # cut back, and longer than before
    assert "fl_app_arrivals_total 0" not in scraped(source)


DASHBOARD = json.loads((FILES / "server" / "grafana.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_the_dashboard_asks_for_figures_that_exist(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, EVENTS)
    known = {name.split()[0] for name in scraped(collector(path))}
    assert len(QUERIES) > 8
    for query in QUERIES:
        promql_parser.parse(query)  # raises ValueError where Prometheus would
        names = set(re.findall(r"\bfl_app_\w+", query))
        assert names, query
        assert names <= known, query
