"""K-asynchronous averaging against hand-derived values.

w_t = [1, 1], eta = 0.5, gradients [2, 0] (n = 10) and [0, 4] (n = 30):

    uniform:  [1, 1] - 0.5 ([2, 0] + [0, 4]) / 2          = [1, 1] - [0.5, 1]    = [0.5, 0]
    examples: [1, 1] - 0.5 (1/4 [2, 0] + 3/4 [0, 4])      = [1, 1] - [0.25, 1.5] = [0.75, -0.5]
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.core.rates import LinearDecay
from fl_app.core.types import GlobalModel, Update

UPDATES = [
    Update(0, 1, vec(2, 0), "gradient", 10, 0.1),
    Update(1, 3, vec(0, 4), "pseudo", 30, 0.1),
]
MODEL = GlobalModel(vec(1, 1), version=3)


@pytest.mark.parametrize(
    ("weighting", "expected"), [("uniform", [0.5, 0]), ("examples", [0.75, -0.5])]
)
def test_step_along_the_mean_gradient(weighting, expected):
    strategy = FedAvgK(server_lr=0.5, weighting=weighting)
    np.testing.assert_allclose(strategy.aggregate(MODEL, UPDATES), expected)


def test_a_foreign_model_is_a_gradient_with_rate_one():
    """w_o = [4, 0], w_i = [2, 1]: g = w_o - w_i = [2, -1]; [1, 1] - 0.5 g = [0, 1.5]."""
    model = GlobalModel(vec(1, 1), version=3, history={1: vec(4, 0)})
    update = Update(0, 1, vec(2, 1), "model", 5, 0.1)
    np.testing.assert_allclose(FedAvgK(server_lr=0.5).aggregate(model, [update]), [0, 1.5])


def test_buffers_move_by_their_whole_mean_displacement():
    """One trainable entry, one buffer: 1 - 0.5 (2 + 0)/2 = 0.5; buffer 1 - (0 + 4)/2 = -1."""
    model = GlobalModel(vec(1, 1), version=3, num_trainable=1)
    np.testing.assert_allclose(FedAvgK(server_lr=0.5).aggregate(model, UPDATES), [0.5, -1])


def test_uploads_are_clipped_one_by_one():
    """To length 1: [1, 0] and [0, 1]; [1, 1] - 0.5 ([1, 0] + [0, 1]) / 2 = [0.75, 0.75]."""
    strategy = FedAvgK(server_lr=0.5, clip_norm=1)
    np.testing.assert_allclose(strategy.aggregate(MODEL, UPDATES), [0.75, 0.75])


def test_buffers_are_not_clipped():
    """Trainable 2 to 1: 1 - 0.5 1 = 0.5; the buffer's 4 stays: 1 - 4 = -3."""
    model = GlobalModel(vec(1, 1), version=3, num_trainable=1)
    strategy = FedAvgK(server_lr=0.5, clip_norm=1)
    np.testing.assert_allclose(strategy.aggregate(model, [gradient(2, 4)]), [0.5, -3])


def test_rate_falls_over_the_run():
    """From 1 to 0.2 over 4 versions it is 0.4 at version 3: 1 - 0.4 0.5 [1, 2] = [0.8, 0.6]."""
    strategy = FedAvgK(server_lr=0.5, lr_schedule=LinearDecay(to=0.2, versions=4))
    np.testing.assert_allclose(strategy.aggregate(MODEL, UPDATES), [0.8, 0.6], rtol=1e-6)


def gradient(*values: float) -> Update:
    return Update(0, 3, vec(*values), "gradient", 10, 0.1)


@pytest.mark.parametrize(
    ("gradients", "clients"),
    [
        ([gradient(2, 0), gradient(0, 2)], 2),  # length 2 against sqrt(2)
        ([gradient(2, 0), gradient(2, 0)], 1),
        ([gradient(3, 0), gradient(0, 1)], 1.6),  # (2 / sqrt(2.5))^2
        ([gradient(2, 0), gradient(-2, 0)], None),
    ],
)
def test_effective_clients(gradients, clients):
    """(mean length / length of the mean)^2."""
    strategy = FedAvgK()
    strategy.aggregate(MODEL, gradients)
    assert strategy.report["effective_clients"] == (clients and pytest.approx(clients))


def test_effective_clients_do_not_see_buffers():
    strategy = FedAvgK()
    strategy.aggregate(GlobalModel(vec(1, 1), 3, num_trainable=1), [gradient(2, 9), gradient(2, 0)])
    assert strategy.report["effective_clients"] == pytest.approx(1)
