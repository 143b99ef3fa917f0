"""The demo of a kit without certificates, on the oldest and the newest Flower that is allowed."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from kit_processes import processes, wait_for
from packaging.requirements import Requirement

from fl_app.record.log import read_events

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.federation]

ROOT = Path(__file__).resolve().parents[2]
NODES = 2
OWN = re.compile(r"(flwr|uv|certifi)==")  # of Flower's requirements, those that follow its version


@pytest.fixture
def flower(request, tmp_path):
    """A folder with a Flower from the package index; None where packages cannot be had."""
    site = tmp_path / "flower"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {each.name: each.specifier for each in map(Requirement, project["dependencies"])}
    wanted = f"flwr{needed['flwr']}"
    if install(site, "--no-deps", "--resolution", request.param, wanted).returncode:
        print(f"NOT TRIED with {wanted}, {request.param}: the installed one takes its place")
        return None
    (made,) = metadata.distributions(name="flwr", path=[str(site)])
    pinned = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    kept = tmp_path / "constraints.txt"
    kept.write_text("".join(line for line in pinned if not OWN.match(line)))
    for constraints in (["--constraints", kept], []):  # a newer Flower may want newer packages
        if not install(site, f"flwr=={made.version}", *constraints).returncode:
            break
    return site


def install(site, *words):
    """Install packages into a folder, with the uv that Flower brings along."""
    command = [Path(sys.executable).parent / "uv", "pip", "install", "--quiet"]
    command += ["--python", sys.executable, "--target", site]
    environment = {key: value for key, value in os.environ.items() if key != "UV_CONSTRAINT"}
    return subprocess.run([*command, *map(str, words)], env=environment)


def demo(flower, folder, warm, *words):
    path = os.pathsep.join([*([str(flower)] if flower else []), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "lab.demo", "--nodes", str(NODES), *words],
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
    process = demo(flower, tmp_path, "0", "--versions", "2", "client_eval_every=2")
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
    process = demo(flower, tmp_path, "1", "--versions", "1000")
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


def test_an_override_that_does_not_exist_is_refused_before_anything_starts(tmp_path):
    process = demo(None, tmp_path, "1", "algorithm=nonsense")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert "algorithm=nonsense does not exist" in output
    assert [*tmp_path.iterdir()] == []
