"""Warm nodes, each with one process that stays and carries out its orders."""

import json
import os
import signal
from collections.abc import Sequence

import pytest
from kit_processes import processes

from fl_app.record.log import read_events
from lab.demo import Federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.federation]

COMMON = ["runtime=deployment", "partition=iid", "num_clients=2"]
COMMON += ["algorithm.schedule.buffer_size=2"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("WARM", raising=False)
    yield tmp_path
    assert not processes(tmp_path)


def test_one_process_of_a_node_carries_out_all_orders(folder):
    """Overlap-FedAvg trains on while models travel: answers are from the version before."""
    federation = Federation(folder / "federation", 2)
    words = [*COMMON, "algorithm=overlap_fedavg", "num_versions=6"]
    try:
        federation.start()
        summary = federation.run(folder / "run", words)
    finally:
        assert federation.stop()
    assert (summary["num_versions"], summary["failures"]) == (6, 0)
    events = [json.loads(line) for line in (folder / "run/events.jsonl").read_text().splitlines()]
    ages = [event["age"] for event in events if event["kind"] == "aggregate"]
    assert ages == [[0, 0], *[[1, 1]] * 5]
    for i in range(2):
        log = federation.log(f"node-{i}")
        assert log.count("carries out orders") == 1
        assert log.count("train order from version") >= 6
        assert "waits as it always does" not in log


class Disturbed(Federation):
    """Kills the process that trains on a node, once, after the first aggregation."""

    killed: Sequence[int] = ()

    def wait(self, seconds):
        super().wait(seconds)
        events = self.folder.parent / "run" / "events.jsonl"
        if not self.killed and events.exists() and "aggregate" in events.read_text():
            self.killed = [*processes(self.folder, "fl_app.node.worker")][:1]
            for process in self.killed:
                os.kill(process, signal.SIGKILL)


def test_a_killed_process_costs_its_order_and_no_more(folder):
    """Flower misses the order after a minute; the node then trains again."""
    federation = Disturbed(folder / "federation", 2)
    words = [*COMMON, "algorithm=fedbuff", "num_versions=null", "max_seconds=100"]
    words += ["algorithm.schedule.concurrency=2", "algorithm.client.local_epochs=20"]
    try:
        federation.start()
        summary = federation.run(folder / "run", words)
    finally:
        assert federation.stop()
    assert len(federation.killed) == 1
    assert summary["failures"] <= 1
    events = list(read_events(folder / "run" / "events.jsonl"))
    last = {event.client: event.t for event in events if event.kind == "arrival"}
    assert min(last.values()) > 80.0
    logs = [federation.log(f"node-{i}") for i in range(2)]
    assert sorted(log.count("carries out orders") for log in logs) == [1, 2]
