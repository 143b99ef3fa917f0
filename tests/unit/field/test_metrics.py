"""Figures for Prometheus, as Prometheus's own parser reads them."""

import json
import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fl_app.core.errors import RunError
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
from fl_app.field.metrics import RunCollector, serve

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


def test_a_log_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert scraped(collector(tmp_path / "events.jsonl"))["fl_app_version"] == 0


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


def test_a_superlink_that_is_down(tmp_path: Path) -> None:
    for error in (ConnectionError, RunError):

        def nodes(error: type[Exception] = error) -> dict[str, int]:
            raise error

        assert scraped(collector(tmp_path / "none", nodes))["fl_app_superlink_up"] == 0


def test_it_is_served(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve(collector(tmp_path / "none"), "127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"fl_app_version 0.0" in answer.read()
    with pytest.raises(OSError, match="Address already in use"):
        serve(collector(tmp_path / "none"), "127.0.0.1", port)


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


def differences(mine: Any, theirs: Any, path: str = "") -> list[str]:
    """Where a value differs that is in `mine`."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        pairs = [(f"{path}.{key}", mine[key], theirs.get(key)) for key in mine]
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(mine, theirs, strict=True))]
    else:
        return [] if mine == theirs else [path]
    return [found for where, a, b in pairs for found in differences(a, b, where)]


def read_by_grafana(dashboard: Any) -> Any:
    """What Grafana's own types keep of a dashboard: they know no other keys."""
    plugins.register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))


def test_grafana_reads_the_whole_dashboard() -> None:
    assert differences(DASHBOARD, read_by_grafana(DASHBOARD)) == []
    mistyped = json.loads(json.dumps(DASHBOARD).replace('"gridPos"', '"gridPosition"', 1))
    assert differences(mistyped, read_by_grafana(mistyped)) == [".panels[0].gridPosition"]


def test_panels_have_places_and_numbers_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24  # columns of Grafana
    (source,) = DASHBOARD["templating"]["list"]
    assert {panel["datasource"]["uid"] for panel in panels} == {f"${{{source['name']}}}"}
