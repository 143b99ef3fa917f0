"""DynSGD against hand-derived values (Jiang et al. 2017).

w_t = [1, 1], eta = 2, K = 2, displacements as gradients [2, 0] of age 1 and [0, 4] of age 3:

    p = [1/2, 1/4] / (3/4) = [2/3, 1/3]:    [1 - 2 2/3 2, 1 - 2 1/3 4] = [-5/3, -5/3]
    exponent 1/2: p = [2^-.5, 4^-.5] / (2^-.5 + 4^-.5) = [0.5857864, 0.4142136]
        [1 - 2 0.5857864 2, 1 - 2 0.4142136 4] = [-1.3431458, -2.3137085]
    original: p = [1 / (2 2), 1 / (2 4)] = [1/4, 1/8]:    [1 - 2 1/4 2, 1 - 2 1/8 4] = [0, 0]
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.dynsgd import DynSGD
from fl_app.algorithms.sasgd import SASGD
from fl_app.core.types import GlobalModel, Update

MODEL = GlobalModel(vec(1, 1), version=5)
UPDATES = [
    Update(0, 4, vec(2, 0), "pseudo", 10, 0.1, rate_sum=0.5),
    Update(1, 2, vec(0, -2), "delta", 30, 0.1, rate_sum=0.5),
]


@pytest.mark.parametrize(("normalise", "expected"), [(True, [-5 / 3, -5 / 3]), (False, [0, 0])])
def test_weights_are_inverse_to_staleness(normalise, expected):
    strategy = DynSGD(server_lr=2, normalise=normalise)
    np.testing.assert_allclose(strategy.aggregate(MODEL, UPDATES), expected, atol=1e-6)


def test_the_exponent_says_how_fast_weights_fall():
    strategy = DynSGD(server_lr=2, exponent=0.5)
    expected = [-1.3431458, -2.3137085]
    np.testing.assert_allclose(strategy.aggregate(MODEL, UPDATES), expected, rtol=1e-6)


def test_the_original_is_sasgd_to_the_bit():
    one = DynSGD(server_lr=0.3, normalise=False).aggregate(MODEL, UPDATES)
    assert one.tobytes() == SASGD(server_lr=0.3).aggregate(MODEL, UPDATES).tobytes()
