"""FADAS against hand-derived values (Wang et al. 2024, Algorithm 1), K = 2, b1 = 1/2, b2 = 3/4.

eps = 1, eta = 0.5, w_0 = [1, 1]; displacements, their ages:

    1   [8, 0], [0, 4]; 0, 0      D = [4, 2]      m = [2, 1]      v = [4, 1] = vhat
        m / (sqrt(vhat) + 1) = [2/3, 1/2];        w_1 = [1 + 1/3, 1 + 1/4]
    2   [-4, 0], [0, 0]; 0, 4     D = [-2, 0]     m = [0, 1/2]    v = [4, 3/4], vhat = [4, 1]
        m / (sqrt(vhat) + 1) = [0, 1/4];  max tau = 4 > tau_c = 1
        printed  eta_t = min(1/2, 1/4) = 1/4      w_2 = [4/3, 5/4 + 1/16]
        ratio    eta_t = 0.5 / 4 = 1/8            w_2 = [4/3, 5/4 + 1/32]
        off      eta_t = 1/2                      w_2 = [4/3, 5/4 + 1/8]
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.fadas import FADAS
from fl_app.core.rates import LinearDecay
from fl_app.core.types import GlobalModel, Update


def fadas(**settings) -> FADAS:
    return FADAS(**({"server_lr": 0.5, "momentum": 0.5, "second_momentum": 0.75} | settings))


SCRIPT = [[(8, 0, 0), (0, 4, 0)], [(-4, 0, 0), (0, 0, 4)]]


def run(strategy: FADAS) -> list[list[float]]:
    params, models = vec(1, 1), []
    for version, batch in enumerate(SCRIPT):
        updates = [
            Update(place, version + 5 - age, vec(x, y), "delta", 10, 0.1)
            for place, (x, y, age) in enumerate(batch)
        ]
        params = strategy.aggregate(GlobalModel(params, version + 5), updates)
        models.append(params.tolist())
    return models


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ({}, 1 / 16),
        ({"delay_rule": "ratio"}, 1 / 32),
        ({"delay_adaptive": False}, 1 / 8),
        ({"delay_threshold": 4}, 1 / 8),
    ],
)
def test_steps_adapt_to_moments_and_delay(settings, last):
    first, second = run(fadas(epsilon=1.0, **settings))
    np.testing.assert_allclose(first, [4 / 3, 5 / 4], rtol=1e-6)
    np.testing.assert_allclose(second, [4 / 3, 5 / 4 + last], rtol=1e-6)


def test_a_second_momentum_near_one_keeps_its_digits():
    """m = D, v = 1e-5 D^2: m / sqrt(v) = 1 / sqrt(1e-5) for each entry."""
    strategy = fadas(server_lr=1, momentum=0, second_momentum=0.99999, epsilon=1e-8)
    update = Update(0, 0, vec(1, 2, -3), "delta", 10, 0.1)
    moved = strategy.aggregate(GlobalModel(vec(0, 0, 0), 0), [update])
    np.testing.assert_allclose(moved, np.array([1, 1, -1]) / np.sqrt(1e-5), rtol=1e-5)


def test_the_printed_rule_acts_where_the_age_is_above_the_inverse_of_the_rate():
    assert [fadas(server_lr=0.2).rate(age) for age in (0, 1, 5, 10)] == [0.2, 0.2, 0.2, 0.1]
    ratio = fadas(server_lr=0.2, delay_rule="ratio")
    assert [ratio.rate(age) for age in (0, 1, 2, 10)] == pytest.approx([0.2, 0.2, 0.1, 0.02])


def test_a_falling_rate_multiplies_it():
    """Half is left at version 5 of 10: w_1 = [1 + 1/6, 1 + 1/8]."""
    strategy = fadas(epsilon=1.0, lr_schedule=LinearDecay(to=0.0, versions=10))
    np.testing.assert_allclose(run(strategy)[0], [1 + 1 / 6, 1 + 1 / 8], rtol=1e-6)


def test_buffers_take_the_mean_displacement():
    model = GlobalModel(vec(0, 0), 0, num_trainable=1)
    updates = [Update(k, 0, vec(8, b), "delta", 10, 0.1) for k, b in enumerate((8, 0))]
    moved = fadas(epsilon=1.0).aggregate(model, updates)
    np.testing.assert_allclose(moved, [0.5 * 4 / (4 + 1), 4])


def test_an_entry_that_never_moved_stays():
    moved = fadas(epsilon=1e-8).aggregate(
        GlobalModel(vec(0, 0), 0), [Update(0, 0, vec(0, 2), "delta", 10, 0.1)]
    )
    np.testing.assert_allclose(moved, [0, 0.5])
