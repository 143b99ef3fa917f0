"""Runs by Flower's engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)
slow = pytest.mark.slow


def carried_out(*words):
    line = [sys.executable, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@slow
def test_simulation_engine_writes_the_same_files_as_inprocess(tmp_path):
    """ClientApps mask and evaluate."""
    words = [
        *("algorithm=fedbuff", "num_versions=4", "devices=uniform_110x", "seed=7"),
        *("algorithm.schedule.concurrency=5", "algorithm.schedule.buffer_size=3"),
        *("client_eval_every=2", "client_eval_fraction=0.2"),
        *("secure_aggregation=helper", "secure_aggregation.clip_norm=5"),
    ]
    folders = [tmp_path / name for name in ("flower", "inprocess")]
    script = Path(__file__).parents[1] / "in_flower.py"
    carried_out(script, folders[0], "3", *words, "runtime=flower")
    own = ["runtime.workers=0", f"hydra.run.dir={folders[1]}"]
    carried_out("-m", "fl_app", *words, *own)
    (log,) = {(folder / "events.jsonl").read_bytes() for folder in folders}
    assert b'"clients_evaluate"' in log
    assert b'"weight_rounding"' in log
    flower, inprocess = (json.loads((f / "summary.json").read_text()) for f in folders)
    assert flower["model_sha256"] == inprocess["model_sha256"]
    assert (flower["num_versions"], flower["failures"], flower["rejected"]) == (4, 0, 0)
