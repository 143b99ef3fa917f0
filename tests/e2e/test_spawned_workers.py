"""A run whose workers inherit nothing, as those on GPUs: the files of one with forked workers."""

from pathlib import Path
from typing import Any

import pytest
from configs import composed

from fl_app.runner import components
from fl_app.runner.cell import run_cell
from fl_app.runner.placement import Placement


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, which are the processor by another name."""
    monkeypatch.setattr(components, "placement", lambda config: Placement("cpu", 2, ("cpu", "cpu")))


def carry_out(folder: Path, *words: str) -> dict[str, Any]:
    config = composed("num_clients=10", "num_versions=12", "eval_every=2", *words)
    return run_cell(config, folder, label="test", show=False)[1]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "words",
    [
        [
            "algorithm=fedasync",
            "runtime.batch=4",
            "metrics=[clients]",
            "task.trainable=[1.bias,3.*]",
        ],
        ["algorithm=scaffold", "algorithm.client.private=[3.bias]"],
    ],
    ids=str,
)
def test_same_files_as_with_forked_workers(
    words: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    carry_out(tmp_path / "forked", "runtime.workers=2", *words)
    request.getfixturevalue("gpus")
    summary = carry_out(tmp_path / "spawned", *words)
    assert summary["failures"] == 0
    for file in ("events.jsonl", "model.npz", "metrics.csv"):
        one, other = ((tmp_path / each / file).read_bytes() for each in ("forked", "spawned"))
        assert one == other
