"""Mean staleness of the used updates is clients / K, whatever the speeds.

In a long run of J versions every client's gaps between its updates add up to J. So the 1-based
staleness of all J * K used updates adds up to P * J, and its mean is P / K.
"""

from typing import Any

import helpers
import numpy as np
import pytest

from fl_app.core.types import Upload, Vector
from fl_app.devices import Exponential, Fleet, LogNormal, MeasuredPhones, Relative, TwoSpeed
from fl_app.devices import UniformRatio as Uniform
from fl_app.schedule import RandomK, k_async

P, K, J = 60, 6, 1500
NOTHING = Upload(np.zeros(1, np.float32), "delta", 1, loss=0.0)


def stay(client_id: int, sequence: int, received: Vector) -> Upload:
    return NOTHING


@pytest.mark.parametrize(
    "devices",
    [
        Uniform(ratio=1, num_clients=P, jitter=0.0),
        Uniform(ratio=5, num_clients=P),
        Uniform(ratio=110, num_clients=P),
        TwoSpeed(num_clients=P),
        LogNormal(num_clients=P),
        Exponential(num_clients=P),
        MeasuredPhones(num_clients=P),
        Fleet(Uniform(ratio=5, num_clients=P), Relative(mean_seconds=[3.0], slowdown=100)),
        RandomK(K, P, 0),
    ],
    ids=lambda devices: type(devices).__name__,
)
def test_mean_staleness_is_clients_over_k(devices: Any) -> None:
    schedule = devices if isinstance(devices, RandomK) else k_async(K)
    if not hasattr(devices, "parts"):
        devices = Fleet(devices)
    ages = helpers.run(
        schedule,
        helpers.Scripted(stay),
        num_clients=P,
        num_versions=J,
        devices=devices,
        initial=np.zeros(1, np.float32),
    ).history.ages
    assert ages.total() == J * K
    mean = sum((age + 1) * count for age, count in ages.items()) / ages.total()
    assert mean == pytest.approx(P / K, rel=0.03)
