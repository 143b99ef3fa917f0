"""FedAsync against hand-derived values (Xie et al. 2019, Algorithm 1 and section 5.2).

w_t = [1, 1] at version 5, w_i = [3, -1], mixing alpha = 0.8:

    s, age 3                                   alpha_t   (1 - alpha_t) [1, 1] + alpha_t [3, -1]
    constant     1                             0.8       [2.6, -0.6]
    polynomial   (3 + 1)^(-1/2) = 1/2          0.4       [1.8,  0.2]
    hinge        1 / (10 (3 - 1) + 1) = 1/21   0.8/21    [1 + 1.6/21, 1 - 1.6/21]
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.fedasync import FedAsync
from fl_app.core.types import GlobalModel, Update

MODEL = GlobalModel(vec(1, 1), version=5)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("constant", [2.6, -0.6]),
        ("polynomial", [1.8, 0.2]),
        ("hinge", [1 + 1.6 / 21, 1 - 1.6 / 21]),
    ],
)
def test_mixing_weight_by_age(function, expected):
    strategy = FedAsync(
        mixing=0.8, staleness_function=function, exponent=0.5, hinge_slope=10, hinge_age=1
    )
    update = Update(0, 2, vec(3, -1), "model", 10, 0.1)
    np.testing.assert_allclose(strategy.aggregate(MODEL, [update]), expected, rtol=1e-6)


def test_hinge_is_flat_up_to_its_age():
    strategy = FedAsync(mixing=0.5, staleness_function="hinge", hinge_slope=10, hinge_age=4)
    assert [strategy.weight(age) for age in (0, 4)] == [0.5, 0.5]
    assert strategy.weight(5) == pytest.approx(0.5 / 11)


def test_staleness_bound_counts_from_one():
    """Base version 2 at version 5 has age 3, staleness 4."""
    update = Update(0, 2, vec(3, -1), "model", 10, 0.1)
    assert FedAsync(max_staleness=4).admit(MODEL, update) is None
    assert "staleness 4 exceeds" in (FedAsync(max_staleness=3).admit(MODEL, update) or "")


def test_several_updates_are_mixed_one_after_the_other():
    """Weights 1/2, w = [0]: 1/2 4 = 2, then 1/2 2 + 1/2 8 = 5."""
    model = GlobalModel(vec(0), 5)
    updates = [Update(c, 5, vec(w), "model", 10, 0.1) for c, w in enumerate((4, 8))]
    strategy = FedAsync(mixing=0.5)
    assert strategy.aggregate(model, updates).tolist() == [5]
    assert strategy.report["weight"] == [0.5, 0.5]
