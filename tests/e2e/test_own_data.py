"""Nodes with data of their own, a server with none, and one node whose data cannot be read."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from configs import composed
from sklearn.datasets import load_iris

from fl_app.client.build import build_task
from fl_app.tasks.task import Task
from lab.demo import Federation

pytestmark = pytest.mark.slow

# Species of each node: no two nodes have the same, and only one has all.
SPECIES = ((0, 1), (1, 2), (0, 1, 2))
RUN = [
    *("algorithm=fedbuff", "runtime=deployment", "num_clients=null", "deadline=120"),
    *("algorithm.schedule.concurrency=4", "algorithm.schedule.buffer_size=2"),
    *("algorithm.client.local_epochs=5", "algorithm.client.local_lr=0.1"),
    *("task.holdout=0.2", "seed=1", "client_eval_every=4"),
]


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def write_schema(out: Path, *words: str) -> None:
    command = [sys.executable, "-m", "fl_app.tasks.schema", *words, "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True)


def accuracy(folder: Path, *words: str) -> float:
    """Of a run's final model, on data of all classes."""
    task = build_task(composed(*words, "num_clients=1", "partition=iid", "task.test_share=0.5"))
    assert isinstance(task, Task)
    module = task.model()
    with np.load(folder / "model.npz") as arrays:
        module.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays})
    return task.test(module)["accuracy"]


def check(folder: Path, bad: int, reason: str) -> None:
    """The run went to its end with three clients; the fourth failed, and soon got fewer orders."""
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["stopped"], summary["num_clients"]) == ("num_versions", 4)
    good = {0, 1, 2, 3} - {bad}
    assert {event["client"] for event in events(folder, "arrival")} == good
    failures = events(folder, "failure")
    assert {event["client"] for event in failures} == {bad}
    assert all(reason in event["reason"] for event in failures)
    assert events(folder, "evaluate") == []  # the server has nothing to test on
    evaluated = events(folder, "clients_evaluate")
    assert evaluated[-1]["version"] == summary["num_versions"]
    assert {event["client"] for event in events(folder, "client_evaluate")} == good
    assert evaluated[-1]["accuracy_mean"] > 0.6


# -- a table each, on real nodes -------------------------------------------------------------------


MODEL = """
from torch import nn

def make(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(*input_shape, 40), nn.ReLU(), nn.Linear(40, num_outputs))

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)
"""


def write_table(path: Path, species: Sequence[int]) -> None:
    flowers = load_iris()
    chosen = np.isin(flowers.target, species)
    rows = zip(flowers.data[chosen], flowers.target_names[flowers.target[chosen]], strict=True)
    lines = [",".join([*map(str, values), name]) for values, name in rows]
    path.write_text("\n".join(["a,b,c,d,species", *lines]) + "\n")


@pytest.mark.timeout(600)
@pytest.mark.federation
def test_three_devices_with_a_table_each_and_a_fourth_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes are warm. The app carries model and loss."""
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tables = [tmp_path / f"node-{i}.csv" for i in range(4)]
    for path, species in zip(tables, SPECIES, strict=False):
        write_table(path, species)
    tables[3].write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    sample, schema = tmp_path / "sample.csv", tmp_path / "schema.json"
    write_table(sample, (0, 1, 2))
    words = ["task=csv", f"task.path={sample}", "task.target=species"]
    write_schema(schema, *words)
    own = tmp_path / "own"  # which no process looks into
    own.mkdir()
    (own / "my_model.py").write_text(MODEL)
    named = ["task.model=my_model:make", "task.loss=my_model:loss"]

    federation = Federation(tmp_path / "federation", 4)
    shutil.copy(own / "my_model.py", federation.kit.folder)
    folder = tmp_path / "run"
    try:
        federation.start([f"data='{path}'" for path in tables])
        task = ["task=csv", f"task.schema={schema}", "num_versions=12", *named]
        federation.run(folder, [*RUN, *task])
    finally:
        assert federation.stop()
    check(folder, 3, "ValueError: this node's own data cannot be read as task=csv")
    monkeypatch.syspath_prepend(own)
    assert accuracy(folder, *words, *named) > 0.85


# -- a folder of images each -----------------------------------------------------------------------
