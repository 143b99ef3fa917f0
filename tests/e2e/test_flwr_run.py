"""`flwr run .` as it is typed in a fresh clone, with an empty home of Flower."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kit_processes import processes
from omegaconf import OmegaConf

from fl_app.field.processes import free_ports

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.federation]

FlwrRun = Callable[..., list[str]]


@pytest.fixture(scope="module")
def flwr_run(tmp_path_factory):
    """Type the command in a clone; returns the lines that it printed."""
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
        "RAY_ADDRESS": "local",  # a cluster of its own, whichever runs on this machine
        "UV_OFFLINE": "1",
    }

    def run(*words):
        done = subprocess.run(
            ["flwr", "run", ".", "--stream", *words],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line.rstrip() for line in done.stdout.splitlines()]
        # Flower's own last words: an empty line of its log, and at times the end of an actor.
        flowers = ("INFO \x1b[0m:", "ClientAppActor")
        return [line for line in lines if line and not line.endswith(flowers)]

    yield run
    while found := processes(home):  # the SuperLink stays otherwise
        for process in found:
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


def test_keys_of_the_run_config_reach_the_run(flwr_run, tmp_path):
    keys = "algorithm='fedasync' task='synthetic' num-clients=12 num-versions=4 seed=3"
    flwr_run("--run-config", f"{keys} output='{tmp_path}' overrides='eval_every=2'")
    config = OmegaConf.load(tmp_path / "config.yaml")
    assert (config.algorithm.name, config.num_clients, config.num_versions) == ("fedasync", 12, 4)
    assert (config.task._target_.rpartition(".")[2], config.seed) == ("Synthetic", 3)


def test_a_refused_key_is_named_in_the_last_lines_though_the_status_is_0(flwr_run):
    lines = flwr_run("--run-config", "algorithm='fedbuf'")
    assert any("ValueError: algorithm=fedbuf does not exist" in line for line in lines[-10:])
