"""Runs of models of which a part is frozen or private: what travels, and what is saved."""

import re

import numpy as np
import pytest
from configs import composed

from fl_app.client.build import build_task
from fl_app.client.initial import build_model
from fl_app.runner.cell import run_cell
from fl_app.runner.checkpoint import Checkpoints
from fl_app.runner.earlier import refuse_other_fixed
from fl_app.runner.validate import validate_config

SMALL = ["num_clients=6", "num_versions=4", "eval_every=2", "partition=iid", "runtime.workers=0"]
SMALL += ["algorithm.client.local_steps=2"]
SMALL += ["algorithm.schedule.buffer_size=2", "algorithm.schedule.concurrency=4"]
HEAD = "task.trainable=[3.*]"  # of the perceptron: 32 x 10 + 10 = 330 of 2,410 parameters
OWN = "algorithm.client.private=[3.*]"  # and 2,080 that are shared


def federation(folder, *more):
    config = composed("algorithm=fedbuff", *SMALL, *more)
    validate_config(config)
    return run_cell(config, folder, label="test")[1]


def arrays(folder):
    with np.load(folder / "model.npz") as file:
        return dict(file)


def seeded(*overrides):
    """The model that everybody builds from the seed."""
    model = build_model(build_task(composed("algorithm=fedbuff", *SMALL, *overrides)), seed=0)
    return model.named(model.read())


def test_only_what_is_trained_travels_and_all_of_it_is_saved(tmp_path):
    summary = federation(tmp_path, HEAD)
    sent = summary["bytes_up"], summary["bytes_down"]
    orders = (tmp_path / "events.jsonl").read_text().count('"dispatch"')
    assert sent == (4 * 330 * summary["client_updates"], 4 * 330 * orders)
    found, first = arrays(tmp_path), seeded()
    assert list(found) == list(first)
    for name, array in found.items():
        assert (array == first[name]).all() == (name[0] == "1")
    checkpoint = next((tmp_path / "checkpoints").iterdir())
    assert checkpoint.stat().st_size < 20 * 4 * 330


def test_private_parameters_stay_in_the_clients_states(tmp_path):
    summary = federation(tmp_path, OWN)
    assert summary["bytes_up"] == 4 * 2080 * summary["client_updates"]
    found, first = arrays(tmp_path), seeded()
    for name, array in found.items():
        assert (array == first[name]).all() == (name[0] == "3")
    states = Checkpoints(tmp_path).load()["engine"]["_states"]
    assert len(states) > 2
    for state in states.values():
        assert list(state) == ["private.3.weight", "private.3.bias"]
        assert (state["private.3.bias"] != first["3.bias"]).all()


def test_a_run_does_not_go_on_with_other_frozen_parameters(tmp_path):
    federation(tmp_path, HEAD, "num_versions=2")
    task = build_task(composed("algorithm=fedbuff", *SMALL, HEAD))
    saved = Checkpoints(tmp_path).load()["fixed"]
    assert saved == build_model(task, seed=0).fixed_digest
    refuse_other_fixed(saved, saved, tmp_path)
    message = re.escape(f"{tmp_path} holds a run of another model: its frozen parameters")
    with pytest.raises(ValueError, match=message):
        refuse_other_fixed("0" * 64, saved, tmp_path)


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
        federation(tmp_path / "run", override)
    assert not (tmp_path / "run").exists()
