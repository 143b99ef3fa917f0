"""What runs are judged by; and when they reach their target. Values are derived in docstrings."""

import math

import numpy as np
import pytest
import torch
from run_folders import numbered
from torch import nn

from fl_app.core.events import from_json
from fl_app.engine.engine import Outcome
from fl_app.record import summary as measures
from fl_app.record.history import Evaluation, History
from fl_app.record.summary import columns, of_last_evaluation, of_outcome, stability
from fl_app.tasks.objective import Classification
from fl_app.tasks.task import Task

# -- numbers --------------------------------------------------------------------------------------


def test_stability_is_the_scatter_of_the_last_ten_accuracies():
    """Five of 0.1 and five of 0.4.

    log10 differs by log10(4) = 0.60206 between the halves, so its population standard deviation is
    half of that, 0.30103; that of the accuracies is 0.15. What came before them does not count.
    """
    log, plain = stability([0.9, 0.001] + 5 * [0.1] + 5 * [0.4])
    assert log == pytest.approx(0.30103, abs=1e-6)
    assert plain == pytest.approx(0.15)


# -- a run's events -------------------------------------------------------------------------------

EVENTS = [
    {"kind": "evaluate", "t": 0.0, "version": 0, "accuracy": 0.1},
    {"kind": "dispatch", "t": 0.0, "client": 0, "version": 0, "bytes": 40},
    {"kind": "dispatch", "t": 0.0, "client": 1, "version": 0, "bytes": 40},
    {"kind": "dispatch", "t": 0.0, "client": 2, "version": 0, "bytes": 40},
    {"kind": "arrival", "t": 2.0, "client": 0, "base_version": 0, "age": 0, "bytes": 40},
    {"kind": "dispatch", "t": 2.0, "client": 0, "version": 0, "bytes": 40},
    {"kind": "failure", "t": 3.0, "client": 1, "base_version": 0, "reason": "deadline"},
    {"kind": "arrival", "t": 5.0, "client": 0, "base_version": 0, "age": 0, "bytes": 40},
    {
        "kind": "aggregate",
        "t": 5.0,
        "client": [0, 0],
        "age": [0, 0],
        "version": 1,
        "weight": [2, 0],
    },
    {"kind": "evaluate", "t": 5.0, "version": 1, "accuracy": 0.6},
    {"kind": "reject", "t": 7.0, "client": 1, "base_version": 0, "reason": "late"},
    {"kind": "arrival", "t": 9.0, "client": 2, "base_version": 0, "age": 0, "bytes": 40},
    {"kind": "reject", "t": 9.5, "reason": "duplicate"},
    {"kind": "dispatch", "t": 9.5, "client": 1, "version": 1, "bytes": 40},
    {"kind": "aggregate", "t": 9.5, "client": [2], "age": [1], "version": 2},
    {"kind": "reject", "t": 10.5, "client": 1, "base_version": 1, "reason": "too old"},
]


def history(flats=EVENTS, **settings):
    counted = History(**settings)
    for event in numbered(flats):
        counted.emit(from_json(event))
    return counted


def test_what_was_in_vain():
    """Of client 0, what was aggregated with weight 0. Client 1: what was late, and refused."""
    counted = history()
    assert counted.joules is None
    assert columns(counted) == {
        "client_updates": 3,
        "bytes_down": 5 * 40,
        "bytes_up": 3 * 40,
        "orders_wasted": 3,
    }


def test_joules_of_orders_as_far_as_they_went():
    """One watt: every second until an order ended counts once, 2 + 3 + 7 + 9 + 1."""
    asked = []

    def joules(client_id, sequence, start, elapsed):
        asked.append((client_id, sequence, start, elapsed))
        return elapsed

    counted = history(joules=joules)
    assert counted.joules == 22.0
    assert columns(counted)["joules"] == 22.0
    assert asked[1:] == [
        (0, 0, 0.0, 2.0),
        (1, 0, 0.0, 3.0),
        (0, 1, 2.0, 3.0),
        (1, 0, 0.0, 7.0),
        (2, 0, 0.0, 9.0),
        (1, 1, 9.5, 1.0),
    ]
    assert history(joules=lambda *order: None).joules is None


def test_the_summary_of_a_run():
    expected = {
        "last10_log10_accuracy_std": pytest.approx(math.log10(6) / 2),
        "last10_accuracy_std": pytest.approx(0.25),
        "report_accuracy": 0.5,
        "seconds_to_target": 5.0,
        "updates_to_target": 2,
        "versions_to_target": 1,
        "seconds_to_stay_at_target": None,
        "updates_to_stay_at_target": None,
        "versions_to_stay_at_target": None,
        "joules": None,
        "orders_wasted": 3,
        "aggregation": {},
    }
    summary = of_outcome(Outcome(np.zeros(2, np.float32)), history(), 1.0, 0.5)
    assert {key: summary[key] for key in expected} == expected


def test_a_collapsed_model_has_finite_weights_and_one_answer():
    def collapsed(share, loss):
        metrics = {"accuracy": 0.1, "loss": loss, "commonest_prediction": share}
        return bool(of_last_evaluation(metrics)["collapsed"])

    assert collapsed(0.99, 2.3)
    assert not collapsed(0.98, 2.3)
    assert not collapsed(1.0, math.nan)  # diverged, as the loss says
    assert "collapsed" not in of_last_evaluation({"accuracy": 0.1, "loss": 2.3})
    assert of_last_evaluation({"rmse": 2.7, "loss": 1.0, "r2": -0.003})["collapsed"]
    assert not of_last_evaluation({"rmse": 1.0, "loss": 0.1, "r2": 0.86})["collapsed"]


# -- class by class -------------------------------------------------------------------------------


class AlwaysZeroOrOne(nn.Module):
    """Says class 1 for positive inputs, else class 0; never class 2."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.stack([(x <= 0).float(), (x > 0).float(), torch.full_like(x, -1.0)], dim=-1)


def small_task(**changes):
    """Test classes 0 0 1 2, of which the model gets one 0 and the 1 right."""
    settings = {
        "name": "small",
        "objective": Classification(3),
        "architecture": AlwaysZeroOrOne,
        "inputs": torch.zeros(6),
        "targets": torch.tensor([0, 0, 1, 2, 2, 1]),
        "test_inputs": torch.tensor([-1.0, 1.0, 1.0, 1.0]),
        "test_targets": torch.tensor([0, 0, 1, 2]),
        "partition": [np.array([0, 1]), np.array([2, 3, 4, 5])],
    }
    return Task(**(settings | changes))


def test_recall_of_every_class():
    metrics = small_task().test(AlwaysZeroOrOne(), recall=True)
    plain = small_task().test(AlwaysZeroOrOne())
    assert metrics == plain | {"recall_0": 0.5, "recall_1": 1.0, "recall_2": 0.0}
    assert metrics["accuracy"] == 0.5


# -- when a run reaches its target -----------------------------------------------------------------

# Means of five from number 4 on: .38, .52, .6, .56, .6
NOISY = [0.1, 0.2, 0.7, 0.4, 0.5, 0.8, 0.6, 0.5, 0.6]


def version(of, accuracies, *arguments):
    """That of the evaluation which `of` finds in evaluations with these accuracies."""
    evaluations = [
        Evaluation(number, 10.0 * number, 3 * number, {"accuracy": accuracy})
        for number, accuracy in enumerate(accuracies)
    ]
    found = of(evaluations, *arguments)
    return found and found.version


def first_at(*arguments):
    return version(measures.first_at, *arguments)


def stays_at(*arguments):
    return version(measures.stays_at, *arguments)


def test_lucky_evaluation_is_the_first_but_does_not_stay():
    assert first_at(NOISY, 0.5) == 2
    assert stays_at(NOISY, 0.5) == 5
    assert stays_at(NOISY, 0.59) == 8  # after the .56
    assert stays_at(NOISY, 0.9) is first_at(NOISY, 0.9) is None
