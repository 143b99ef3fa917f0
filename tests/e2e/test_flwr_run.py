"""`flwr run .` in a fresh clone with an empty home of Flower; and the demo."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from kit_processes import free_ports, processes, wait_for
from packaging.requirements import Requirement

from fl_app.record.log import read_events
from lab.demo import Federation

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.federation]


@pytest.fixture(scope="module")
def flwr_run(tmp_path_factory):
    """A function that runs the command in a clone and returns the lines that it printed."""
    clone = tmp_path_factory.mktemp("clone") / "fl-app"
    for name in ("fl_app", "conf"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".gitignore", "LICENSE", "README.md", "pyproject.toml", "uv.toml"):
        shutil.copy(ROOT / name, clone)
    home = clone.parent / "home"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "PYTHONPATH"))}
    environment |= {
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_ports(1)[0]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_ADDRESS": "local",  # a new cluster, even if one runs on this machine
        "UV_OFFLINE": "1",
    }

    def run(*arguments):
        process = subprocess.run(
            ["flwr", "run", ".", "--stream", *arguments],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        lines = [line.rstrip() for line in process.stdout.splitlines()]
        # Flower's last output: an empty line of its log, and sometimes the end of an actor.
        flowers = ("INFO \x1b[0m:", "ClientAppActor")
        return [line for line in lines if line and not line.endswith(flowers)]

    yield run
    while pids := processes(home):  # otherwise the SuperLink stays
        for process in pids:
            os.kill(process, signal.SIGTERM)
        time.sleep(0.2)


def test_a_plain_run_installs_nothing_and_ends_with_its_table_and_folder(flwr_run):
    lines = flwr_run()
    text = "\n".join(lines)
    assert "No additional application dependencies needed installation" in text
    assert any("versions" in line and "/250 updates at" in line for line in lines)
    assert any(line.startswith("cell ") for line in lines)
    folder = Path(lines[-1].rpartition(" ")[2])
    assert folder.is_absolute(), lines[-8:]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["client_updates"], summary["failures"]) == (250, 0)
    assert (folder / "report.html").exists()


# -- the demo of a kit without certificates, on the oldest and the newest Flower -------------------

NODES = 2
OWN = re.compile(r"(flwr|uv|certifi)==")  # of Flower's requirements, those that follow its version


@pytest.fixture
def flower(request, tmp_path):
    """A folder with a Flower from the package index; None if packages cannot be downloaded."""
    site = tmp_path / "flower"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    specifiers = {each.name: each.specifier for each in map(Requirement, project["dependencies"])}
    requirement = f"flwr{specifiers['flwr']}"
    if install(site, "--no-deps", "--resolution", request.param, requirement).returncode:
        print(f"NOT TRIED with {requirement}, {request.param}: the installed one takes its place")
        return None
    (distribution,) = metadata.distributions(name="flwr", path=[str(site)])
    pins = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    path = tmp_path / "constraints.txt"
    path.write_text("".join(line for line in pins if not OWN.match(line)))
    for constraints in (["--constraints", path], []):  # a newer Flower may need newer packages
        if not install(site, f"flwr=={distribution.version}", *constraints).returncode:
            break
    return site


def install(site, *arguments):
    """Install packages into a folder, with the uv that Flower brings along."""
    command = [Path(sys.executable).parent / "uv", "pip", "install", "--quiet"]
    command += ["--python", sys.executable, "--target", site]
    environment = {key: value for key, value in os.environ.items() if key != "UV_CONSTRAINT"}
    return subprocess.run([*command, *map(str, arguments)], env=environment)


def demo(flower, folder, warm, *overrides):
    path = os.pathsep.join([*([str(flower)] if flower else []), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "lab.demo", "--nodes", str(NODES), *overrides],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "WARM": warm},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def logs_of_nodes(folder):
    logs = [path.read_text() for path in folder.glob("outputs/*/logs/node-*.log")]
    assert len(logs) == NODES
    return logs


@pytest.mark.parametrize("flower", ["lowest-direct"], indirect=True)
def test_the_demo_runs_to_its_end_on_the_oldest_flower_as_it_is(flower, tmp_path):
    process = demo(flower, tmp_path, "0", "num_versions=2", "client_eval_every=2")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert not processes(tmp_path)
    (file,) = tmp_path.glob("outputs/*/run/summary.json")
    summary = json.loads(file.read_text())
    assert (summary["num_versions"], summary["failures"]) == (2, 0)
    assert summary["client_updates"] >= 4
    assert (summary["client_eval_version"], summary["client_eval_clients"]) == (2, NODES)
    assert 0 <= summary["client_eval_accuracy_worst_decile"] <= 1
    assert f"{NODES} of {NODES} SuperNodes online" in output
    assert f"fedbuff on {NODES} nodes: 2 versions from" in output
    assert str(file.parents[1]) in output
    events = read_events(file.parent / "events.jsonl")
    assert {event.client for event in events if event.kind == "arrival"} <= {0, 1}  # partitions
    for log in logs_of_nodes(tmp_path):
        assert "WARM=0: " in log
        assert log.count("train order from version") >= 2


@pytest.mark.parametrize("flower", ["highest"], indirect=True)
def test_an_interrupted_demo_on_the_newest_flower_leaves_no_process_behind(flower, tmp_path):
    process = demo(flower, tmp_path, "1", "num_versions=1000")
    assert process.stdout is not None
    for line in process.stdout:
        if "is running" in line:
            break
    logs = [*tmp_path.glob("outputs/*/logs/node-*.log")]
    wait_for(lambda: all("train order" in log.read_text() for log in logs), "all nodes train")
    assert any("serverapp" in command for command in processes(tmp_path).values())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert "interrupted" in output
    wait_for(lambda: not processes(tmp_path), "all processes are gone", 60.0)
    for log in logs_of_nodes(tmp_path):
        assert log.count("carries out orders") == 1
        assert "waits as it always does" not in log
    (server,) = tmp_path.glob("outputs/*/logs/server.log")
    assert "waits as it always does" not in server.read_text()


# -- warm nodes: one process of each node carries out all of its orders ----------------------------


def test_one_process_of_a_node_carries_out_all_orders(tmp_path, monkeypatch):
    """Overlap-FedAvg trains during transfers: its answers have the previous base version."""
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("WARM", raising=False)
    federation = Federation(tmp_path / "federation", 2)
    overrides = ["runtime=deployment", "partition=iid", "num_clients=2", "algorithm=overlap_fedavg"]
    overrides += ["algorithm.schedule.buffer_size=2", "num_versions=6"]
    try:
        federation.start()
        summary = federation.run(tmp_path / "run", overrides)
    finally:
        assert federation.stop()
    assert not processes(tmp_path)
    assert (summary["num_versions"], summary["failures"]) == (6, 0)
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    ages = [event["age"] for event in events if event["kind"] == "aggregate"]
    assert ages == [[0, 0], *[[1, 1]] * 5]
    for i in range(2):
        log = federation.log(f"node-{i}")
        assert log.count("carries out orders") == 1
        assert log.count("train order from version") >= 6
        assert "waits as it always does" not in log
