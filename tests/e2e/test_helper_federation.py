"""Secure aggregation on real SuperNodes, with a helper that is killed and started again."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit_processes import ENVIRONMENT, ask, give_ports, start, wait_for

from fl_app.field.kit import Kit
from fl_app.field.make import VENV
from fl_app.field.processes import GRACE, end, free_ports
from fl_app.strategy.privacy import epsilon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500), pytest.mark.federation]

NODES, VERSIONS, MEMBERS = 3, 16, 2  # versions enough that doctor finds a run at work


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A kit with a helper, whose nodes are kept running and wait for their SuperLink."""
    out = tmp_path / "out"
    port, helper_port = free_ports(2)
    made = ask("init", "--nodes", NODES, "--host", "localhost", "--port", port, out)
    assert made.returncode == 0, made.stderr
    made = ask("helper", "--new", "--host", "localhost", out)
    assert made.returncode == 0, made.stderr
    assert "secure_aggregation=helper secure_aggregation.address=localhost:8101" in made.stdout
    settings = out / "helper" / "helper.env"
    text = settings.read_text().replace("8101", str(helper_port)).replace(VENV, sys.prefix)
    settings.write_text(text)
    give_ports(out)
    nodes = [start(out / f"node-{i}.log", "keep", out / f"node-{i}") for i in range(NODES)]
    yield out
    for process in nodes:
        end(process)


class Helper:
    """The helper's process, started as a person or a service does."""

    def __init__(self, out: Path) -> None:
        self.folder, self._log = out / "helper", out / "helper.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = Kit.read(self.folder, {}).settings["PORT"]

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", self.folder / "start.sh"],
                env=ENVIRONMENT,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def used(self) -> tuple[int, int]:
        """Seeds and requests in its record."""
        with sqlite3.connect(f"file:{self.folder / 'helper.db'}?mode=ro", uri=True) as database:
            query = "SELECT count(*), count(DISTINCT request) FROM used"
            seeds, requests = database.execute(query).fetchone()
        database.close()
        return seeds, requests


def events(run: Path, kind: str) -> list[dict[str, object]]:
    path = run / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    complete = (json.loads(line) for line in lines if line.endswith("\n"))
    return [event for event in complete if event["kind"] == kind]


def test_a_federation_outlives_its_helper(out: Path) -> None:
    """Killed twice, once while the server waits for it: nothing lost, nothing used twice."""
    helper, server, run = Helper(out), out / "server", out / "run"
    helper.start()
    words = [
        *("algorithm=fedbuff", "task=digits", "partition=iid", "runtime=deployment"),
        *(f"num_clients={NODES}", f"algorithm.schedule.concurrency={NODES}", "eval_every=1"),
        *(f"algorithm.schedule.buffer_size={MEMBERS}", "deadline=120", "checkpoint_every=1"),
        *("secure_aggregation=helper", "secure_aggregation.clip_norm=5"),
        *(f"secure_aggregation.address=localhost:{helper.port}", f"num_versions={VERSIONS}"),
        "secure_aggregation.noise_multiplier=0.01",
    ]
    keeper = start(out / "server.log", "keep", server)
    process = start(out / "run.log", "run", "--output", run, server, *words)
    try:
        wait_for(lambda: len(events(run, "aggregate")) >= 2, "two versions")
        for _ in range(2):
            helper.kill()
            before = len(events(run, "aggregate"))
            # Uploads arrive, the server waits, and makes no version.
            time.sleep(8)
            assert len(events(run, "aggregate")) <= before + 1
            helper.start()
            wait_for(lambda: len(events(run, "aggregate")) > before + 1, "it goes on")  # noqa: B023
        folders = {"helper": [], "server": words, "node-0": []}
        doctors = {
            name: start(out / f"doctor-{name}.log", "doctor", out / name, *more)
            for name, more in folders.items()
        }
        for name, doctor in doctors.items():
            told = out / f"doctor-{name}.log"
            assert doctor.wait(60) == 0, told.read_text()
            assert "helper's key" in told.read_text()
        assert ask("healthy", helper.folder).returncode == 0
        assert process.wait(200) == 0, (out / "run.log").read_text()
    finally:
        end(process)
        end(keeper, grace=2 * GRACE)
        helper.kill()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["num_versions"], summary["failures"]) == (VERSIONS, 0)
    assert events(run, "reject") == []
    aggregated = events(run, "aggregate")
    assert len(aggregated) == VERSIONS
    orders = Counter(order for event in aggregated for order in event["order"])  # type: ignore[attr-defined]
    assert set(orders.values()) == {1}
    assert helper.used() == (MEMBERS * VERSIONS, VERSIONS)
    assert summary["epsilon"] == epsilon(0.01, VERSIONS, 1e-5)
    accuracies = [event["accuracy"] for event in events(run, "evaluate")]
    assert accuracies[-1] > accuracies[0] + 0.2  # type: ignore[operator]
