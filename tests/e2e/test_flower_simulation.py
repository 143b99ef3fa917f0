"""The command line in Flower's simulation engine (Ray)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OVERRIDES = [
    *("algorithm=fedbuff", "num_versions=4", "devices=uniform_110x", "seed=7"),
    *("algorithm.schedule.concurrency=5", "algorithm.schedule.buffer_size=3"),
    *("client_eval_every=2", "client_eval_fraction=0.2"),
]


def run(folder: Path, *overrides: str) -> str:
    command = [sys.executable, "-m", "fl_app", f"hydra.run.dir={folder}", *OVERRIDES, *overrides]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=folder.parent, env=environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_simulation_engine_writes_the_same_files_as_inprocess(tmp_path: Path) -> None:
    """ClientApps mask and evaluate, and the helper adds noise."""
    secure = [
        *("secure_aggregation=helper", "secure_aggregation.clip_norm=5"),
        "secure_aggregation.noise_multiplier=0.1",
    ]
    output = run(tmp_path / "flower", "runtime=flower", "runtime.num_nodes=3", *secure)
    run(tmp_path / "inprocess", "runtime.workers=0", *secure)
    folders = [tmp_path / name for name in ("flower", "inprocess")]
    (log,) = {(folder / "events.jsonl").read_bytes() for folder in folders}
    assert b'"clients_evaluate"' in log
    assert b'"noise_deviation"' in log
    flower, inprocess = (json.loads((f / "summary.json").read_text()) for f in folders)
    assert flower["model_sha256"] == inprocess["model_sha256"]
    assert flower["epsilon"] == inprocess["epsilon"] > 0
    assert (flower["num_versions"], flower["failures"], flower["rejected"]) == (4, 0, 0)
    assert "DEPRECATED" not in output
    assert "alembic" not in output
