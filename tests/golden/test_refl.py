"""REFL against hand-derived values (Abdelmoniem et al. 2023), b = 0.5, eta = 1, w_t = [1, 1].

Youngest, so fresh: [2, 0] and [0, 2] of age 1, hence ubar = [1, 1] and n_F = 2. Stale: [1, -1] of
age 3 and [1, 0] of age 5.

    L = ||ubar - (g + 2 ubar) / 3||^2 / 2 = ||ubar - g||^2 / 18 = 4/18 and 1/18: ratios 1 and 1/4
    v = 0.5 / 4 + 0.5 (1 - exp(-1))   = 0.125     + 0.3160603 = 0.4410603
        0.5 / 6 + 0.5 (1 - exp(-1/4)) = 0.0833333 + 0.1105996 = 0.1939329
    sum v = 2 + 0.6349932 = 2.6349932
    sum v g / sum v = [2 + 0.6349932, 2 - 0.4410603] / 2.6349932 = [1, 0.5916295]
    w = [0, 0.4083705]

With scale 10 the exponentials count a tenth:

    v = 0.125 + 0.5 (1 - 0.03678794) = 0.6066060,  0.0833333 + 0.5 (1 - 0.07788008) = 0.5443933
    sum v = 3.1509993,  w = [0, 1 - (2 - 0.6066060) / 3.1509993] = [0, 0.5577931]
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.refl import REFL
from fl_app.core.types import GlobalModel, Update

MODEL = GlobalModel(vec(1, 1), version=6)


def update(base_version: int, *gradient: float) -> Update:
    return Update(base_version, base_version, vec(*gradient), "gradient", 10, 0.1)


UPDATES = [update(3, 1, -1), update(5, 2, 0), update(1, 1, 0), update(5, 0, 2)]


@pytest.mark.parametrize(("scale", "expected"), [(1, [0, 0.4083705]), (10, [0, 0.5577931])])
def test_stale_weights_by_age_and_deviation(scale, expected):
    strategy = REFL(boost=0.5, scale=scale)
    np.testing.assert_allclose(strategy.aggregate(MODEL, UPDATES), expected, atol=1e-6)


def test_without_a_fresh_direction_only_age_counts():
    """ubar = 0: ratio 0, v = 0.5 / 4 + 0.5 (1 - 1) = 1/8, p = 1/8 / (2 + 1/8) = 1/17."""
    strategy = REFL(boost=0.5)
    strategy.aggregate(MODEL, [update(5, 1, 0), update(5, -1, 0), update(3, 0, 1)])
    assert strategy.report["weight"] == pytest.approx([8 / 17, 8 / 17, 1 / 17])


def test_stale_updates_that_agree_with_the_fresh_count_by_age():
    """L = 0 for all, so its maximum is 0 too: v = 1/8, p = [8, 1] / 9."""
    strategy = REFL(boost=0.5)
    strategy.aggregate(MODEL, [update(5, 1, 0), update(3, 1, 0)])
    assert strategy.report["weight"] == pytest.approx([8 / 9, 1 / 9])


def test_only_stale_updates_deviate():
    """Fresh [4, 0] and [0, 4] are 8 from ubar = [2, 2]; [2, 1] and [2, 0] 1 and 4: ratios 1/4, 1.

    v = 0.5 / 4 + 0.5 (1 - exp(-1/4)) = 0.2355996, 0.5 / 6 + 0.5 (1 - exp(-1)) = 0.3993936
    """
    strategy = REFL(boost=0.5)
    updates = [update(5, 4, 0), update(5, 0, 4), update(3, 2, 1), update(1, 2, 0)]
    strategy.aggregate(MODEL, updates)
    expected = np.array([1, 1, 0.2355996, 0.3993936]) / 2.6349932
    np.testing.assert_allclose(strategy.report["weight"], expected, rtol=1e-6)
