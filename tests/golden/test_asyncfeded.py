"""AsyncFedED against hand-derived values (Wang et al. 2022), lambda = 2, eps = 1/2.

w_5 = [3, 4], w_2 = [0, 0], Delta = [0, 2] of age 3:

    gamma = 5 / 2,    2 / (2.5 + 0.5) = 2/3,    w = [3, 4 + 4/3]

Fresh: gamma = 0, 2 / 0.5 = 4: w = [3, 12]. Both in one aggregation, the stale one first: the fresh
one then finds the model 4/3 away, gamma = 2/3, 2 / (2/3 + 1/2) = 12/7: w = [3, 4 + 4/3 + 24/7].
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.asyncfeded import AsyncFedED
from fl_app.core.rates import LinearDecay
from fl_app.core.types import GlobalModel, Update

MODEL = GlobalModel(vec(3, 4), 5, {2: vec(0, 0)})
STALE = Update(0, 2, vec(0, 2), "delta", 10, 0.1)
FRESH = Update(1, 5, vec(0, 2), "delta", 10, 0.1)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([STALE], [3, 4 + 4 / 3]),
        ([FRESH], [3, 12]),
        ([STALE, FRESH], [3, 4 + 4 / 3 + 24 / 7]),
    ],
)
def test_the_weight_falls_with_the_distance(updates, expected):
    strategy = AsyncFedED(server_lr=2.0, offset=0.5)
    np.testing.assert_allclose(strategy.aggregate(MODEL, updates), expected, rtol=1e-6)


def test_a_falling_rate_multiplies_the_weight():
    """Half is left at version 5 of 10: 4 + 2/3."""
    strategy = AsyncFedED(server_lr=2.0, offset=0.5, lr_schedule=LinearDecay(to=0.0, versions=10))
    np.testing.assert_allclose(strategy.aggregate(MODEL, [STALE]), [3, 4 + 2 / 3], rtol=1e-6)


def test_an_upload_of_no_length_has_no_weight():
    strategy = AsyncFedED()
    still = Update(0, 2, vec(0, 0), "delta", 10, 0.1)
    assert strategy.aggregate(MODEL, [still]).tolist() == [3, 4]
    assert strategy.report["weight"] == [0]
    assert strategy.report["distance"] == [None]


def test_buffers_take_at_most_the_displacement():
    """Weight 2 of a fresh upload: 0 + 2 3 = 6 of the trainable entry, 1 + 3 of the buffer."""
    model = GlobalModel(vec(0, 1), 5, num_trainable=1)
    moved = AsyncFedED(server_lr=2.0).aggregate(model, [Update(0, 5, vec(3, 3), "delta", 10, 0.1)])
    np.testing.assert_allclose(moved, [6, 4])


def test_epochs_follow_the_distance_if_asked():
    """gamma = 2.5, gamma_bar = 1, kappa = 1: 5 + floor(-1.5) = 3; then a fresh one, 3 + 1."""
    strategy = AsyncFedED(adapt_epochs=True)
    assert strategy.dispatch(MODEL, 0)[1] == {"local_epochs": 5}
    strategy.aggregate(MODEL, [STALE])
    assert strategy.dispatch(MODEL, 0)[1] == {"local_epochs": 3}
    strategy.aggregate(MODEL, [Update(0, 5, vec(0, 2), "delta", 10, 0.1)])
    assert strategy.dispatch(MODEL, 0)[1] == {"local_epochs": 4}
    assert strategy.dispatch(MODEL, 7)[1] == {"local_epochs": 5}
    for _ in range(30):
        strategy.aggregate(MODEL, [FRESH])
        strategy.aggregate(MODEL, [STALE])
    epochs = [strategy.dispatch(MODEL, client)[1]["local_epochs"] for client in (0, 1)]
    assert epochs == [1, 20]
    assert AsyncFedED().dispatch(MODEL, 0)[1] == {}


def test_lengths_are_of_the_trainable_part():
    """w_5 - w_2 = 3 and Delta = 2, beside a buffer that moves by 40: gamma = 3 / 2, weight 2/5."""
    model = GlobalModel(vec(3, 50), 5, {2: vec(0, 0)}, num_trainable=1)
    moved = AsyncFedED().aggregate(model, [Update(0, 2, vec(2, 40), "delta", 10, 0.1)])
    np.testing.assert_allclose(moved, [3 + 2 * 2 / 5, 50 + 40 * 2 / 5])


def test_an_upload_of_no_length_leaves_one_epoch():
    strategy = AsyncFedED(adapt_epochs=True)
    strategy.aggregate(MODEL, [Update(0, 2, vec(0, 0), "delta", 10, 0.1)])
    assert strategy.dispatch(MODEL, 0)[1] == {"local_epochs": 1}


def test_a_first_order_has_no_more_epochs_than_later_ones_may():
    with pytest.raises(ValueError, match=r"max_epochs=20 must be at least .*local_epochs=30"):
        AsyncFedED(adapt_epochs=True, local_epochs=30)
    AsyncFedED(local_epochs=30)  # not adapted, so without a bound
