"""FedBuff against hand-derived values (Nguyen et al. 2022, Algorithm 1).

w_t = [1, 1] at version 4, K = 2, eta_g = 2, displacements [2, 0] of age 0 and [0, 4] of age 3:

    polynomial: s = 1 and (1 + 3)^(-1/2) = 1/2
        [1, 1] + 2 * 1/2 (1 [2, 0] + 1/2 [0, 4]) = [1, 1] + [2, 2] = [3, 3]
    constant:   [1, 1] + 2 * 1/2 ([2, 0] + [0, 4]) = [3, 5]
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.fedbuff import FedBuff
from fl_app.core.rates import LinearDecay
from fl_app.core.types import GlobalModel, Update

MODEL = GlobalModel(vec(1, 1), version=4, history={1: vec(7, 7)})


@pytest.mark.parametrize(("function", "expected"), [("polynomial", [3, 3]), ("constant", [3, 5])])
@pytest.mark.parametrize("kind", ["delta", "model", "pseudo"])
def test_step_along_discounted_displacements(function, expected, kind):
    """The same two displacements as delta, as model w_o + delta, and as -delta / rate_sum."""
    stale = {"delta": vec(0, 4), "model": vec(7, 11), "pseudo": vec(0, -8)}[kind]
    updates = [
        Update(0, 4, vec(2, 0), "delta", 10, 0.1),
        Update(1, 1, stale, kind, 10, 0.1, rate_sum=0.5),
    ]
    strategy = FedBuff(server_lr=2, staleness_function=function)
    np.testing.assert_allclose(strategy.aggregate(MODEL, updates), expected)


def test_discounts_are_not_normalised():
    """A lone update of age 3 moves the model by half: [1, 1] + 1/2 [0, 4] = [1, 3]."""
    update = Update(1, 1, vec(0, 4), "delta", 10, 0.1)
    np.testing.assert_allclose(FedBuff().aggregate(MODEL, [update]), [1, 3])


def test_hinge_is_not_offered():
    with pytest.raises(ValueError, match="must be polynomial or constant"):
        FedBuff(staleness_function="hinge")


def test_displacements_are_clipped_and_the_rate_falls():
    """[0, 4] to length 1, age 3, half its rate left at version 4 of 8: 1 + 0.5 1/2 = 1.25."""
    strategy = FedBuff(clip_norm=1, lr_schedule=LinearDecay(to=0, versions=8))
    update = Update(1, 1, vec(0, 4), "delta", 10, 0.1)
    np.testing.assert_allclose(strategy.aggregate(MODEL, [update]), [1, 1.25])
