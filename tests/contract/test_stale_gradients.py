"""Stale gradients are really stale: what a client was given is no longer the server's to change.

A simulation that hands out the server's own array computes every later gradient on the newest model
and merely labels it stale; published results have come from that.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from helpers import MeanDelta, Quadratic, Scripted, Times, order_for, run, vec

from fl_app.client import LocalTrainer
from fl_app.client.flat import FlatModel
from fl_app.core.types import GlobalModel, Update, Upload, Vector
from fl_app.schedule import k_async


class InPlace(MeanDelta):
    """Counts versions in one array that it changes under everybody's feet."""

    def __init__(self) -> None:
        super().__init__()
        self.params = np.zeros(2, np.float32)

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        self.params += 1
        return self.params


def echo(client_id: int, sequence: int, received: Vector) -> Upload:
    """What the client was given, as its mean loss, which the log keeps."""
    return Upload(np.zeros(2, np.float32), "gradient", 1, loss=float(received[0]))


@pytest.mark.parametrize("workers", [0, 2])
def test_clients_train_on_the_version_that_they_were_given(workers: int) -> None:
    """Version v holds v in both entries; client 3 takes ten times as long as the others."""
    result = run(
        k_async(2),
        Scripted(echo),
        num_clients=4,
        num_versions=40,
        devices=Times(lambda client, order: 10.0 if client == 3 else 1.0),
        strategy=InPlace(),
        workers=workers,
    )
    arrivals = result.kind("arrival")
    assert [event["loss"] for event in arrivals] == [event["base_version"] for event in arrivals]
    assert max(event["age"] for event in arrivals if event["client"] == 3) > 5


def test_training_leaves_what_was_received_alone() -> None:
    received = vec(1, 2, 3)
    trainer = LocalTrainer(Quadratic.scattered(2), upload="model", local_steps=3)
    trained = trainer.train(order_for(0, 0, received, {})).vector
    assert received.tolist() == [1, 2, 3]
    assert not np.allclose(trained, received)


def test_a_loaded_model_is_a_copy() -> None:
    server = np.array([1, 2, 3], np.float32)
    model = FlatModel(Quadratic.scattered(2).model())
    model.load(server)
    server += 10
    assert model.read().tolist() == [1, 2, 3]
