"""Errors in a client's code: they end a run in virtual time, or are counted and told."""

import json
import logging
import re

import numpy as np
import pytest
from configs import composed

import fl_app
from fl_app.client import LocalTrainer
from fl_app.core.errors import ClientError, ServerError
from fl_app.record.summary import told_of_trouble
from fl_app.runner.cell import run_cell
from fl_app.runner.validate import Given, validate_config

SMALL = (
    *("num_clients=5", "partition=iid", "num_versions=3", "eval_every=10"),
    *("algorithm.client.local_steps=1", "algorithm.client.batch_size=4"),
)
ERROR = "AttributeError: 'NoneType' object has no attribute 'vector'"


class Mistaken(LocalTrainer):
    """Client 2 has a bug in its second order, and training diverges on client 4."""

    @property
    def batches(self):
        return True

    def begin(self, config, rng):
        if self.client_id == 2 and int(config["version"]) > 0:
            _look_at(None)
        if self.client_id == 4:
            raise FloatingPointError("the loss is not finite")

    def correct(self, grad, step):
        return grad


def run_alone(folder, *words):
    given = Given(trainer=Mistaken)
    return run_cell(composed(*SMALL, *words), folder, label="run", given=given, show=False)


def _look_at(model):
    vector = model.vector()
    return vector


WAYS = (("runtime.workers=0",), ("runtime.workers=2",), ("runtime.workers=0", "runtime.batch=4"))


def test_the_first_error_ends_the_run_in_every_runtime(tmp_path, caplog):
    """With its traceback, once, of the user's code alone; what was done is written."""
    events = []
    for number, way in enumerate(WAYS):
        folder = tmp_path / str(number)
        caplog.clear()
        outcome, summary = run_alone(folder, *way)
        assert isinstance(outcome.error, ClientError)
        assert re.match(rf"client 2, order \d+: {ERROR}\.", str(outcome.error))
        (told,) = (r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR)
        assert ERROR in told
        assert told.count('File "') == told.count(f'File "{__file__}"') == 2
        assert json.loads((folder / "summary.json").read_text()) == summary
        assert summary["stopped"].startswith("ClientError: client 2, order ")
        assert summary["num_versions"] > 0
        assert summary["first_failure"] == f"client 2: {ERROR}"  # not that of client 4
        events.append((folder / "events.jsonl").read_text())
    assert events[0] == events[1]  # last bits of losses differ in batches
    *_, last = map(json.loads, events[0].splitlines())
    assert (last["kind"], last["client"], last["raised"]) == ("failure", 2, True)


def test_a_run_that_tolerates_them_tells_how_many_at_its_end(tmp_path, caplog, capsys):
    settings = (*SMALL, "runtime.workers=0", "failures=tolerate")
    result = fl_app.run(*settings, Mistaken, output=tmp_path / "python")
    summary, kinds = result.summary, result.events["kind"]
    failures = int((kinds == "failure").sum())
    assert (summary["stopped"], summary["failures"]) == ("num_versions", failures)
    assert summary["orders"] == (kinds == "dispatch").sum()
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1
    told = f"{failures} of {summary['orders']} orders failed, first: client 2: {ERROR}"
    shown, last = capsys.readouterr().out.splitlines()
    assert shown.endswith(f" {failures} failed")
    assert last == told


def test_a_model_that_collapsed_is_told():
    told = "the model nearly always predicts the same class"
    assert told_of_trouble({"": {"collapsed": True}}) == told
    several = {"one": {"collapsed": True}, "two": {"collapsed": False}, "three": {}}
    assert told_of_trouble(several) == f"{told}: one"


def test_an_error_in_a_strategy_is_told_with_its_traceback(tmp_path, caplog, monkeypatch):
    def mistaken(*_):
        np.ones(2) @ np.ones(3)

    monkeypatch.setattr("fl_app.algorithms.fedbuff.FedBuff.aggregate", mistaken)
    outcome, summary = run_cell(composed(*SMALL), tmp_path, label="run", show=False)
    assert isinstance(outcome.error, ServerError)
    assert summary["stopped"].startswith("ValueError: matmul: ")
    assert caplog.text.count(f'File "{__file__}"') == caplog.text.count('File "') == 1
    assert (tmp_path / "model.npz").is_file()


def test_an_algorithms_file_has_its_four_parts_and_no_other():
    config = composed("+algorithm.clients.upload=delta", "algorithm=fedbuff")
    with pytest.raises(ValueError, match=r"^algorithm=fedbuff must have .*: of its YAML, clients"):
        validate_config(config)
