"""``runtime.batch``: refused, taken as it is, or set aside with a reason."""

from pathlib import Path
from typing import Any

import pytest
from configs import composed

from fl_app.runner.cell import run_cell
from fl_app.runner.earlier import finished

SMALL = ["num_clients=10", "runtime.workers=0", "algorithm.schedule.concurrency=6", "eval_every=99"]


def carry_out(folder: Path, algorithm: str, *overrides: str) -> dict[str, Any]:
    config = composed(f"algorithm={algorithm}", *SMALL, *overrides)
    _, summary = run_cell(config, folder, label="test", show=False)
    return summary


def test_what_cannot_be_trained_together_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    summary = carry_out(tmp_path, "fedasmu", "num_versions=1", "runtime.batch=4")
    assert summary["batch"] == 1
    reason = "FedASMUTrainer has a should_pause of its own"
    told = f"runtime.batch=4: clients are trained one at a time: {reason}"
    assert caplog.messages.count(told) == 1


def test_a_resumed_run_has_the_batches_of_the_whole(tmp_path: Path) -> None:
    batch = ["runtime.batch=3", "resume=auto"]
    carry_out(tmp_path / "parts", "fedasync", "num_versions=20", *batch)
    summary = carry_out(tmp_path / "parts", "fedasync", "num_versions=40", *batch)
    whole = carry_out(tmp_path / "whole", "fedasync", "num_versions=40", "runtime.batch=3")
    assert summary["batch"] == whole["batch"] == 3
    assert summary["batched_orders"] == whole["batched_orders"] > 20
    for file in ("events.jsonl", "model.npz"):
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_run_of_another_batch_is_not_resumed(tmp_path: Path) -> None:
    carry_out(tmp_path, "fedasync", "num_versions=4", "runtime.batch=3")
    config = composed(
        "algorithm=fedasync", *SMALL, "num_versions=9", "runtime.batch=2", "resume=auto"
    )
    with pytest.raises(ValueError, match=r"runtime\.batch=3 instead of 2"):
        finished(config, tmp_path)
