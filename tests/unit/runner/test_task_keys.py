"""Keys that every task has, and tasks without a test set or without accuracy."""

import json
import re
from dataclasses import replace
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from helpers import AGE, engine_of, make_config, schema
from torch import nn

from fl_app.client.build import build_task, complete_task
from fl_app.client.initial import build_model
from fl_app.runner.cell import Plan, run_cell
from fl_app.runner.checkpoint import Checkpoints
from fl_app.runner.earlier import refuse_other_frozen
from fl_app.runner.validate import validate_config
from fl_app.tasks.objective import Regression
from fl_app.tasks.task import Task

SMALL = ("num_clients=4", "num_versions=2", "runtime.workers=0", "partition=iid", "deadline=null")


def line():
    """Numbers on a line, without clients and without a test set."""
    inputs = torch.linspace(-1, 1, 40)[:, None]
    return Task(
        name="line",
        objective=Regression(1),
        architecture=lambda: nn.Linear(1, 1),
        inputs=inputs,
        targets=3 * inputs + 1,
    )


def with_test_set():
    task = line()
    return replace(task, test_inputs=task.inputs, test_targets=task.targets)


def run_task(task, *overrides):
    config = make_config(*SMALL, *overrides)
    engine, recorder = engine_of(config, complete_task(config, task))
    engine.run()
    return recorder


TABLE = ["task=csv", f"task.schema='{json.dumps(schema(AGE))}'"]

# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.holdout=1"], "task.holdout=1 must be in [0, 1): "),
        (["task.holdout=half"], "task.holdout=half must be in [0, 1)"),
        (["task.weights=absent.pt"], "task.weights=absent.pt must be a file or null"),
        (
            ["partition=slow_labels", "partition.labels=8"],
            "partition.labels=8 must be a list of classes",
        ),
        (["devices=boards", "devices.table=nope"], "devices.table=nope must be a file"),
        (["max_updates=5"], "max_updates=5 must be at least 10, the updates of a version"),
        (["client_eval_fraction=0.2"], "client_eval_fraction=0.2 must be 1.0 without client_eval"),
        (["task.holdout=0.2"], "task.holdout=0.2 must be 0 without client_eval_every: nobody"),
        (["num_clients=null"], "num_clients=None must be an integer >= 1"),
        *(  # only real nodes have data of their own
            (
                [*TABLE, f"runtime={runtime}"],
                f"task.path=null must be the data with runtime={runtime}",
            )
            for runtime in ("inprocess", "flower")
        ),
    ],
)
def test_bad_values_are_refused_before_the_data_are_read(overrides, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        validate_config(make_config(*overrides))


def test_clients_of_a_task_from_python_follow_from_the_configuration():
    task = complete_task(make_config(*SMALL, "task.holdout=0.1"), line())
    assert [part.size for part in task.validation] == [1] * 4
    fixed = replace(line(), partition=[np.arange(30), np.arange(30, 40)])
    assert complete_task(make_config(*SMALL), fixed) is fixed


def test_weights_are_the_first_version(tmp_path):
    file = tmp_path / "weights.pt"
    torch.save({"weight": torch.tensor([[3.0]]), "bias": torch.tensor([1.0])}, file)
    first = run_task(with_test_set(), f"task.weights={file}").history.evaluations[0]
    assert (first.version, first.metrics["rmse"]) == (0, 0.0)


# -- tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "override", "message"),
    [
        (line, "metrics=[recall]", "metrics=['recall'] must be []: task=line has no test set"),
        (
            with_test_set,
            "metrics=[recall]",
            "task=line (regression) has no test set of single classes: leave metrics= empty",
        ),
        (
            with_test_set,
            "target_accuracy=0.5",
            "target_accuracy=0.5 must be null, with num_versions=, max_updates= or max_seconds= to "
            "end the run: task=line measures no accuracy but rmse",
        ),
        (line, "target_accuracy=0.5", "target_accuracy=0.5 must be null"),
    ],
)
def test_metrics_that_a_task_does_not_have_are_refused(task, override, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        run_task(task(), override, "runtime.workers=1")
    assert not active_children()


# -- whole runs -----------------------------------------------------------------------------------

X = np.random.default_rng(0).standard_normal((60, 3))
TARGETS = {"classification": np.arange(60) % 3, "regression": X @ [1.0, -2.0, 3.0] + 50}


@pytest.mark.parametrize("test_share", [0.2, 0.0])
@pytest.mark.parametrize("kind", TARGETS)
def test_every_kind_of_target_runs_with_and_without_a_test_set(tmp_path, kind, test_share):
    np.savez(tmp_path / "data.npz", x_train=X, y_train=TARGETS[kind])
    config = make_config(
        *SMALL,
        "num_clients=10",
        "task=arrays",
        f"task.path={tmp_path}/data.npz",
        f"task.test_share={test_share}",
    )
    validate_config(config)
    outcome, summary = run_cell(Plan(config), tmp_path / "run", label=kind)
    assert (outcome.stopped, summary["failures"]) == ("num_versions", 0)
    assert (summary["final_loss"] is not None) == (test_share > 0)
    header, *rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len(rows) == (2 if test_share else 0)  # of the first and the last version
    assert not test_share or ("rmse" in header.split(",")) == (kind == "regression")


# -- frozen and private parameters ----------------------------------------------------------------

HEAD = "task.trainable=[3.*]"


def run_checked(folder, *overrides):
    validate_config(config := make_config(*SMALL, *overrides))
    run_cell(Plan(config), folder, label="test")


def test_a_run_does_not_go_on_with_other_frozen_parameters(tmp_path):
    run_checked(tmp_path, HEAD, "checkpoint_every=1")
    task = build_task(make_config(*SMALL, HEAD))
    traces = Checkpoints(tmp_path).load()["frozen"]
    assert build_model(task, seed=0).differing(traces) == []
    refuse_other_frozen([], tmp_path)
    message = re.escape(
        f"{tmp_path} holds a run of another model: its frozen or private parameters 1.weight"
    )
    with pytest.raises(ValueError, match=message):
        refuse_other_frozen(build_model(task, seed=1).differing(traces), tmp_path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.trainable=[]", "task.trainable=[] must be a list of patterns such as [head.*] or "),
        ("task.trainable=head", "task.trainable=head must be a list of patterns such as [head.*]"),
        ("algorithm.client.private=3", "client.private=3 must be a list of patterns such as "),
        ("algorithm.client.private=[7.*]", "client.private='7.*' matches no name in the model"),
    ],
)
def test_bad_patterns_are_refused_before_anything_is_written(tmp_path, override, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        run_checked(tmp_path / "run", override)
    assert not (tmp_path / "run").exists()
