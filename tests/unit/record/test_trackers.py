"""What trackers receive of a run; the trackers are fakes where their packages are not installed."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from configs import composed
from omegaconf import OmegaConf

from fl_app.record.trackers import track
from fl_app.runner.jobs import Plan
from fl_app.runner.run import _track
from fl_app.runner.validate import validate_config

CONFIG = """\
seed: 3
algorithm: {name: fedbuff, client: {local_lr: 0.1}}
experiment: {name: mine, scale: full, cells: {a: [algorithm=fedbuff]}}
"""
SUMMARY = {
    **{"seed": 3, "commit": "abc", "version": "1", "stopped": "updates", "data": None},
    **{"final_accuracy": 0.9, "failures": 0, "score": "accuracy", "higher_is_better": True},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    rows = "version,t,accuracy,loss\n0,0.0,0.1,nan\n5,2.5,0.9,\n"
    (folder / "metrics.csv").write_text(rows)
    return folder


def test_mlflow_receives_a_run_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Any]] = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            calls.append(("uri", tracking_uri))

        def get_experiment_by_name(self, name: str) -> None:
            calls.append(("experiment", name))

        def create_experiment(self, name: str) -> str:
            return f"id of {name}"

        def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> object:
            calls.append(("run", (experiment, run_name, tags["commit"], tags["seed"])))
            return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

        def log_batch(self, run: str, **values: Any) -> None:
            calls.extend((kind, each) for kind, some in values.items() for each in some)

        def log_artifact(self, run: str, path: str) -> None:
            calls.append(("file", Path(path).name))

        def set_terminated(self, run: str) -> None:
            calls.append(("end", run))

    entities = ModuleType("mlflow.entities")
    for name in ("Metric", "Param"):
        setattr(entities, name, lambda *values: values)
    tracking = ModuleType("mlflow.tracking")
    tracking.MlflowClient = Client  # type: ignore[attr-defined]
    for module in (ModuleType("mlflow"), entities, tracking):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    track("mlflow", run, tmp_path, "a")
    track("mlflow", run, tmp_path, "a")
    assert calls[0] == ("uri", (tmp_path / "mlruns").as_uri())
    assert [c for c in calls if c[0] == "run"] == [("run", ("id of mine", "a", "abc", "3"))]
    assert ("params", ("algorithm.client.local_lr", "0.1")) in calls
    assert not [value for kind, value in calls if kind == "params" and "cells" in value[0]]
    measured = [(m[0], m[1], m[3]) for kind, m in calls if kind == "metrics"]
    assert ("accuracy", 0.9, 5) in measured
    assert ("summary.final_accuracy", 0.9, 0) in measured
    assert not [m for m in measured if m[0] == "loss"]
    assert calls[-1] == ("end", "r1")


def test_wandb_receives_a_run_offline(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: dict[str, Any] = {}
    logged: list[Any] = []
    ended: list[bool] = []
    offline = SimpleNamespace(
        id="w1",
        log=lambda *values: logged.append(values),
        summary={},
        finish=lambda: ended.append(True),
    )
    wandb = ModuleType("wandb")
    wandb.init = lambda **values: begun.update(values) or offline  # type: ignore[attr-defined]
    wandb.Settings = wandb.Table = lambda **values: values  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    track("wandb", run, tmp_path, "a")
    assert (begun["mode"], begun["project"], begun["name"]) == ("offline", "mine", "a")
    assert begun["config"]["algorithm.client.local_lr"] == 0.1
    assert begun["tags"] == ["commit abc"]
    assert logged[1] == ({"t": 2.5, "accuracy": 0.9}, 5)
    table = logged[2][0]["evaluations"]
    assert table == {
        "columns": ["version", "t", "accuracy"],
        "data": [[0.0, 0.0, 0.1], [5.0, 2.5, 0.9]],
    }
    assert offline.summary["final_accuracy"] == 0.9
    assert ended == [True]
    assert json.loads((run / "tracked.json").read_text()) == {"tracker": "wandb", "run": "w1"}


def test_wandb_has_late_scores_of_clients_and_no_run_that_failed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves out a step below the last one, and logs into a run that has not ended."""
    steps: list[int] = []
    ended: list[bool] = []

    def log(values: dict[str, Any], step: int) -> None:
        steps.append(step)
        if step == 7:
            raise RuntimeError("no")

    offline = SimpleNamespace(id="w1", log=log, finish=lambda: ended.append(True))
    wandb = ModuleType("wandb")
    wandb.init = lambda **values: offline  # type: ignore[attr-defined]
    wandb.Settings = lambda **values: values  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    (run / "metrics.csv").write_text("version,accuracy_mean\n0,0.1\n7,0.3\n5,0.2\n")
    with pytest.raises(RuntimeError):
        track("wandb", run, tmp_path, "a")
    assert steps == [0, 5, 7]
    assert ended == [True]
    assert not (run / "tracked.json").exists()


def test_a_run_that_one_tracker_has_is_handed_to_another(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    had = []
    for name in ("mlflow", "wandb"):
        take = partial(lambda own, *_: had.append(own) or own, name)
        monkeypatch.setattr(f"fl_app.record.trackers._{name}", take)
    for name in ("mlflow", "mlflow", "wandb", "wandb"):
        track(name, run, tmp_path, "a")
    assert had == ["mlflow", "wandb"]


def test_a_run_that_did_not_reach_its_end_is_not_handed_over(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[str] = []
    monkeypatch.setattr("fl_app.record.trackers.track", lambda *given: had.append(given[0]))
    plan = Plan(OmegaConf.create({"tracker": "wandb", "algorithm": {"name": "fedbuff"}}))
    for stopped in ("interrupted", "Diverged: not finite", "updates"):
        (run / "summary.json").write_text(json.dumps({**SUMMARY, "stopped": stopped}))
        _track(plan, run, tmp_path, "a")
    assert had == ["wandb"]


@pytest.mark.parametrize("kind", [RuntimeError, ConnectionRefusedError])
def test_a_tracker_that_fails_is_told_and_tried_again(
    kind: type[Exception],
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def init(**values: Any) -> None:
        raise kind("it does not like the name")

    wandb = ModuleType("wandb")
    wandb.init = init  # type: ignore[attr-defined]
    wandb.Settings = lambda **values: values  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    plan = Plan(OmegaConf.create({"tracker": "wandb", "algorithm": {"name": "fedbuff"}}))
    _track(plan, run, tmp_path, "a")
    assert capsys.readouterr().out == (
        "a: wandb did not take the run: it does not like the name; resume=auto hands it over "
        "again\n"
    )
    assert not (run / "tracked.json").exists()


def test_no_tracker_is_imported_unless_it_is_asked_for() -> None:
    code = "import sys, fl_app.runner.run, fl_app.record.trackers;"
    code += "sys.exit(bool({'mlflow', 'wandb', 'optuna'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_trackers_are_refused() -> None:
    with pytest.raises(ValueError, match="tracker=neptune must be mlflow or wandb or null"):
        validate_config(composed("tracker=neptune"))
