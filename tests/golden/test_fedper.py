"""FedPer by hand: shared and private parameters are trained together, shared ones are averaged.

Arivazhagan et al. 2019. A client's model is w + p_i, its loss (w + p_i - x_i)^2 / 2, so both
gradients are the residual r = w + p_i - x_i. The clients' examples are x_0 = 4 and x_1 = 0.
"""

import re

import numpy as np
import pytest
import torch
from helpers import Quadratic, order_for, run, vec
from torch import nn

from fl_app.algorithms.fedasmu.trainer import FedASMUTrainer
from fl_app.algorithms.fedavg import FedAvg
from fl_app.algorithms.overlap_fedavg.trainer import OverlapTrainer
from fl_app.algorithms.scaffold import SCAFFOLD
from fl_app.algorithms.scaffold.trainer import SCAFFOLDTrainer
from fl_app.client import LocalTrainer
from fl_app.client.build import chain
from fl_app.schedule import synchronous


class Parted(nn.Module):
    """w + p less the examples; both begin at 0."""

    def __init__(self):
        super().__init__()
        self.head = nn.Parameter(torch.zeros(1))
        self.body = nn.Parameter(torch.zeros(1))

    def forward(self, points):
        return self.body + self.head - points


class Two(Quadratic):
    def __init__(self):
        super().__init__([[[4.0]], [[0.0]]])

    def model(self):
        return Parted()


HALF = {"local_lr": 0.5, "local_steps": 1, "private": ["head"]}


def test_shared_part_is_sent_and_private_part_is_kept():
    """From w = 0, p = 0 with rate 1/2:

    client 0: r = -4, so w = 2, p_0 = 2.    Client 1: r = 0, so w = 0, p_1 = 0.

    The mean is w = 1. In the second round

    client 0: r = 1 + 2 - 4 = -1, so w = 1.5, p_0 = 2.5.
    Client 1: r = 1 + 0 - 0 = 1, so w = 0.5, p_1 = -0.5.
    """
    trainer = LocalTrainer(Two(), **HALF)
    assert trainer.model.layout.names == ["body"]
    first = chain(trainer).train(order_for(0, 0, vec(0), {}))
    assert first.vector.tolist() == [2.0]
    assert {name: array.tolist() for name, array in first.state.items()} == {"private.head": [2.0]}
    other = chain(trainer).train(order_for(1, 0, vec(0), {}))
    assert (other.vector.tolist(), other.state["private.head"].tolist()) == ([0.0], [0.0])
    again = chain(trainer).train(order_for(0, 1, vec(1), {}, first.state))
    assert (again.vector.tolist(), again.state["private.head"].tolist()) == ([1.5], [2.5])
    last = chain(trainer).train(order_for(1, 1, vec(1), {}, other.state))
    assert (last.vector.tolist(), last.state["private.head"].tolist()) == ([0.5], [-0.5])


def fedper(workers):
    trainer = LocalTrainer(Two(), **HALF)
    return run(
        synchronous(2), chain(trainer), num_clients=2, num_versions=2,
        strategy=FedAvg(), initial=vec(0), workers=workers,
    )  # fmt: skip


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_two_rounds_of_a_federation(workers):
    """The second round's mean is (1.5 + 0.5) / 2 = 1; without private parts w would be 2."""
    result = fedper(workers)
    assert result.outcome.params.tolist() == [1.0]
    assert {event["bytes"] for event in result.kind("dispatch", "arrival")} == {4}


@pytest.mark.parametrize("kind", ["delta", "pseudo", "model"])
def test_uploads_are_those_of_the_shared_part(kind):
    """From w = 1, p = 0: r = -3, so w = 2.5: a displacement of 1.5, a gradient of -3."""
    trainer = LocalTrainer(Two(), **HALF, upload=kind, upload_dtype="float16")
    upload = chain(trainer).train(order_for(0, 0, vec(1), {}))
    assert upload.vector.tolist() == [{"delta": 1.5, "pseudo": -3.0, "model": 2.5}[kind]]
    assert upload.state["private.head"].tolist() == [1.5]


def test_scaffold_controls_the_shared_part():
    """From w = c = 0 with one step of rate 1/2: c_i+ = c_i - c + (x - y_i) / (K eta_l) = -4.

    In client 0's second order, from w = 2 with p_0 = 2 and c = -2: r = 0, so the corrected
    gradient of w is 0 - c_i + c = 0 + 4 - 2 = 2 and w = 1; p_0 stays 2.
    """
    trainer = SCAFFOLDTrainer(Two(), **HALF, upload="delta")
    first = chain(trainer).train(order_for(0, 0, vec(0), {}, extra={"control": vec(0)}))
    assert first.extra["control"].tolist() == [-4.0]
    state = {name: array.tolist() for name, array in first.state.items()}
    assert state == {"control": [-4.0], "private.head": [2.0]}
    again = chain(trainer).train(order_for(0, 1, vec(2), {}, first.state, {"control": vec(-2)}))
    assert again.vector.tolist() == [-1.0]
    assert again.state["private.head"].tolist() == [2.0]
    whole = run(
        synchronous(2), chain(trainer), num_clients=2, num_versions=3, strategy=SCAFFOLD(),
        initial=vec(0),
    )  # fmt: skip
    assert np.isfinite(whole.outcome.params).all()


def test_a_pause_keeps_the_private_part_and_the_whole_velocity():
    """x = 4, rate 1/4, momentum 1/2, one step an epoch, and a pause after the first of two:

    r = -4, so both are 1; after the pause r = -2, v = -4 / 2 - 2 = -4, so both are 2.
    """

    class Pausing(FedASMUTrainer):
        def should_pause(self, epoch):
            return epoch == 1

    settings = {
        "private": ["head"], "local_lr": 0.25, "momentum": 0.5, "local_epochs": 2
    }  # fmt: skip
    trainer = Pausing(Two(), **settings, slot="first")
    paused = chain(trainer).train(order_for(0, 0, vec(0), {"slot": 1}))
    assert not paused.done
    assert paused.state["private.head"].tolist() == [1.0]
    chain(trainer).train(order_for(1, 0, vec(0), {"slot": 1}))  # the same process, another client
    config = {"slot": 1, "continues": True}
    upload = chain(trainer).train(order_for(0, 0, vec(), config, paused.state))
    assert upload.vector.tolist() == [2.0]
    assert upload.state["private.head"].tolist() == [2.0]


def test_the_client_evaluates_with_its_own_part():
    """w + p - x = 1 + 3 - 4 = 0, and 1 + 0 - 4 = -3 with the initial p."""
    trainer = LocalTrainer(Two(), **HALF)
    for state, loss in (({"private.head": vec(3)}, 0.0), ({}, 4.5)):
        scores = chain(trainer).score(order_for(0, 1, vec(1), {}, state))
        assert scores.metrics["loss"] == loss


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"private": ["tail"]}, "client.private='tail' matches no name in the model, whose names "),
        ({"private": ["*"]}, "client.private=['*'] matches the others"),
        ({"private": []}, "client.private=[] must be a list of patterns such as [head.*] or null"),
        ({"private": "head"}, "client.private=head must be a list of patterns such as"),
        ({"private": [1]}, "client.private=[1] must be a list of patterns such as"),
        (
            {"private": ["head"], "upload": "gradient"},
            "client.upload=gradient must be model, delta",
        ),
    ],
)
def test_bad_patterns_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        LocalTrainer(Two(), **settings)


def test_a_trainer_that_works_ahead_cannot_have_private_parts():
    with pytest.raises(ValueError, match=r"client.private=\['head'\] must be null with Overlap"):
        OverlapTrainer(Two(), private=["head"])
