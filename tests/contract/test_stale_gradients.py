"""Stale gradients are really stale: what a client was given is no longer the server's to change.

A simulation that hands out the server's own array computes every later gradient on the newest model
and merely labels it stale; published results have come from that.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from helpers import MeanDelta, Scripted, Times, run

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
