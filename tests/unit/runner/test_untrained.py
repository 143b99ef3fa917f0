"""Runs that predict when things happen, without training."""

from pathlib import Path
from typing import Any

import pytest
from configs import composed
from helpers import HeadedQuadratic, Recorder

from fl_app.runner.cell import run_cell
from fl_app.runner.components import build_components
from fl_app.runner.factory import build_engine
from fl_app.runner.validate import validate_config

CLIENTS = 12
TASK = HeadedQuadratic.scattered(CLIENTS)
BUSY = ["devices/server=measured", "devices.server.evaluation=0.3", "devices.server.poll=0.2"]


def course(name: str, train: str) -> tuple[list[Any], bytes]:
    """What happened and when, and the final model."""
    config = composed(
        f"algorithm={name}",
        f"num_clients={CLIENTS}",
        *("num_versions=15", "eval_every=2", "runtime.workers=0", f"runtime.train={train}"),
        *BUSY,
    )
    recorder = Recorder()
    engine = build_engine(build_components(config, TASK), sinks=[recorder])
    final = engine.run().params.tobytes()
    keys = ("kind", "t", "client", "order", "version", "age", "busy")
    return [[event.get(key) for key in keys] for event in recorder.events], final


@pytest.mark.parametrize("name", ["fedavg", "fedasync", "fedbuff", "fedstaleweight", "scaffold"])
def test_the_same_happens_at_the_same_time_as_with_training(name: str) -> None:
    (trained, model), (untrained, still) = course(name, "true"), course(name, "false")
    assert trained == untrained
    assert model != still


def test_a_run_without_training_measures_nothing(tmp_path: Path) -> None:
    config = composed("num_versions=4", "runtime.train=false", "num_clients=10", "eval_every=1")
    _, summary = run_cell(config, tmp_path / "run", label="untrained", show=False)
    assert (summary["num_versions"], summary["final_accuracy"]) == (4, None)
    assert summary["mean_staleness"] >= 0


@pytest.mark.parametrize(
    "more", ["target_accuracy=0.5", "metrics=[recall]", "client_eval_every=1", "runtime.train=no"]
)
def test_what_needs_training_is_refused(more: str) -> None:
    config = composed("runtime.train=false", "num_clients=10", *([more] if more else []))
    if more == "runtime.train=no":
        config.runtime.train = "no"
    with pytest.raises(ValueError, match=r"^runtime\.train="):
        validate_config(config)
