"""Real nodes as processes on this machine, started and stopped by the demo."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import processes_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.federation,
]


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "lab.demo", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_fedbuff_runs_on_real_nodes(tmp_path: Path) -> None:
    demo = start(tmp_path, "--nodes", "2", "--versions", "2", "client_eval_every=2")
    output, _ = demo.communicate()
    assert demo.returncode == 0, output
    assert not processes_of(tmp_path)
    (summary_file,) = tmp_path.glob("outputs/*/run/summary.json")
    summary = json.loads(summary_file.read_text())
    assert (summary["num_versions"], summary["failures"]) == (2, 0)
    assert summary["client_updates"] >= 4
    assert (summary["client_eval_version"], summary["client_eval_clients"]) == (2, 2)
    assert 0 <= summary["client_eval_accuracy_worst_decile"] <= 1
    assert "2 of 2 SuperNodes online" in output
    assert "fedbuff on 2 nodes: 2 versions from" in output
    assert str(summary_file.parents[1]) in output
    events = (summary_file.parent / "events.jsonl").read_text().splitlines()
    clients = {json.loads(event).get("client") for event in events if '"arrival"' in event}
    assert clients <= {0, 1}  # partition ids, not node ids


def test_an_override_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    demo = start(tmp_path, "--nodes", "1", "algorithm=nonsense")
    output, _ = demo.communicate(timeout=20)
    assert demo.returncode == 2, output
    assert "algorithm=nonsense does not exist" in output
    assert [*tmp_path.iterdir()] == []


def test_interrupt_leaves_no_process_behind(tmp_path: Path) -> None:
    demo = start(tmp_path, "--nodes", "1", "--versions", "1000")
    assert demo.stdout is not None
    for line in demo.stdout:
        if "is running" in line:
            break
    assert any("serverapp" in command for command in processes_of(tmp_path).values())
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate()
    assert demo.returncode == 130, output
    assert not processes_of(tmp_path)
