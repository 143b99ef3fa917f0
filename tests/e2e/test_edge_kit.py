"""The edge kit on loopback with TLS and node authentication, and what its supervisors mend."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit_processes import ask, give_ports, logged, processes, start, wait_for

from fl_app.field.control import OFFLINE_AFTER, SuperLink, Unreachable, public_bytes
from fl_app.field.kit import Kit
from fl_app.field.processes import GRACE, end, free_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.federation,
]

NODES = 2
VERSIONS = 40  # long enough that doctor, register and others find a federation at work
RUN = [
    *("algorithm=fedbuff", "task=digits", "partition=iid", "runtime=deployment", "eval_every=1"),
    *(f"num_clients={NODES}", f"algorithm.schedule.concurrency={NODES}"),
    *("algorithm.schedule.buffer_size=1", "deadline=120", "checkpoint_every=1"),
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A kit whose nodes are kept running, and wait for their SuperLink."""
    out = tmp_path_factory.mktemp("edge") / "out"
    (port,) = free_ports(1)
    init = ask("init", "--nodes", NODES, "--host", "localhost", "--port", port, out)
    assert init.returncode == 0, init.stderr
    give_ports(out)
    keepers = [start(out / f"node-{i}.log", "keep", out / f"node-{i}") for i in range(NODES)]
    yield out
    for keeper in keepers:
        end(keeper)
    wait_for(lambda: not processes(out), "all processes are gone")


def test_a_new_kit_runs_and_the_doctor_finds_nothing(out: Path) -> None:
    server, versions = out / "server", f"num_versions={VERSIONS}"
    keeper = start(out / "server.log", "keep", server)
    run = start(out / "run.log", "run", "--output", out / "run", server, *RUN, versions)
    try:
        wait_for(lambda: logged(out / "run", "arrival") > 0, "an update arrives")
        same = start(out / "same.log", "run", "--output", out / "run", server, *RUN, versions)
        try:
            said = (out / "same.log").read_text
            wait_for(lambda: "no other run is submitted" in said(), "the run is found", 30)
            same.terminate()  # as Ctrl-C, which a shell's background jobs do not hear
            same.wait(10)
            assert "The run goes on" in said()
            assert "submitted: " not in said()
        finally:
            end(same)
        for folder in (server, out / "node-0"):
            doctor = ask("doctor", folder)
            assert doctor.returncode == 0, doctor.stdout
            assert ask("healthy", folder).returncode == 0
        assert "refuses their calls" in doctor.stdout or shutil.which("caddy") is None
        assert ask("register", server).stdout.count("could join already") == NODES
        assert run.wait(300) == 0, (out / "run.log").read_text()
    finally:
        end(run)
        end(keeper, grace=2 * GRACE)
    summary = json.loads((out / "run" / "summary.json").read_text())
    assert (summary["num_versions"], summary["failures"]) == (VERSIONS, 0)
    wait_for(lambda: not processes(server), "its processes are gone", 30.0)
    doctor = ask("doctor", out / "node-0")
    assert doctor.returncode == 1
    assert "refused" in doctor.stdout
    again = ask("run", "--output", out / "run", server, *RUN)
    assert again.returncode == 2
    assert "must be a folder without a finished run" in again.stderr


def test_a_run_outlives_its_superlink(out: Path) -> None:
    server, folder = out / "server", out / "run-killed"
    keeper = start(out / "server.log", "keep", server)
    run = start(out / "killed.log", "run", "--output", folder, server, *RUN, "num_versions=6")
    try:
        wait_for(lambda: logged(folder, "aggregate") > 1, "two versions are published")
        (superlink,) = processes(server, "flower-superlink")
        os.kill(superlink, signal.SIGKILL)
        assert run.wait(300) == 0, (out / "killed.log").read_text()
    finally:
        end(run)
        end(keeper, grace=2 * GRACE)
    told = (out / "killed.log").read_text()
    assert told.count("submitted: ") == 2
    assert "num_versions=6 resume=auto" in told
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["num_versions"] == 6


def test_a_killed_node_comes_back(out: Path) -> None:
    """It is refused until the server misses the process that died."""
    kit = Kit.read(out / "server")
    key = public_bytes(out / "server" / "keys" / "node-1.pub")

    def status() -> str:
        try:
            return SuperLink(kit).registered()[key]
        except Unreachable:
            return "unknown"

    keeper = start(out / "server.log", "keep", out / "server")
    try:
        wait_for(lambda: status() == "online", "the node has found the SuperLink")
        node = min(processes(out / "node-1", "fl_app.node.warm"))  # its executor is a fork
        os.kill(node, signal.SIGKILL)
        wait_for(lambda: status() == "offline", "the node is missed")
        assert wait_for(lambda: status() == "online", "the node is back") < 2 * OFFLINE_AFTER
    finally:
        end(keeper, grace=2 * GRACE)
