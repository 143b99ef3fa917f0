"""GSGM against hand-derived values (Li et al. 2019): P = 3, K = 2, eta = 1, alpha = 1/2, w_0 = 0.

round  clients  gradients  gm  gu = gm + M/2   w      acc = sum gu k/P
1      0, 1     2, 4       3   3              -3      2 3/3
1      2        6          6   6              -9      2 3/3 + 6/3 = 4 = M
2      1, 0     1, 1       1   3              -12     2 3/3
2      2        0          0   2              -14     2 3/3 + 2/3 = 8/3 = M
3      2, 0     0, 0       0   4/3            -15 1/3
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.gsgm import GSGM
from fl_app.core.types import GlobalModel, Update

SCRIPT = [({0: 2, 1: 4}, -3), ({2: 6}, -9), ({1: 1, 0: 1}, -12), ({2: 0}, -14)]
SCRIPT.append(({2: 0, 0: 0}, -14 - 4 / 3))


def test_momentum_is_the_mean_step_of_the_round_before():
    strategy, params = GSGM(server_lr=1.0, momentum=0.5), vec(0)
    for version, (gradients, expected) in enumerate(SCRIPT):
        updates = [Update(c, 0, vec(g), "gradient", 1, 0.1) for c, g in gradients.items()]
        params = strategy.aggregate(GlobalModel(params, version), updates)
        np.testing.assert_allclose(params, [expected], rtol=1e-6)


def test_buffers_have_no_momentum():
    """One trainable entry, one buffer: the second round moves the buffer by its upload alone."""
    strategy = GSGM(server_lr=1.0, momentum=0.5)
    model = GlobalModel(vec(0, 0), 0, num_trainable=1)
    update = Update(0, 0, vec(2, 2), "gradient", 1, 0.1)
    np.testing.assert_allclose(strategy.aggregate(model, [update]), [-2, -2])
    np.testing.assert_allclose(strategy.aggregate(model, [update]), [-3, -2])


def test_momentum_must_not_grow():
    with pytest.raises(ValueError, match=r"strategy\.momentum=1 must be in \[0, 1\)"):
        GSGM(momentum=1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"accumulate": "code"}, [-3, -9, -11.5, -13, -13 - 2 / 3]),
        ({"apply_momentum": False}, [-3, -9, -10, -10, -10]),
    ],
)
def test_wkafls_code(settings, expected):
    """acc = sum gu / P: (3 + 6) / 3 = 3, then (1 + 3/2 + 0 + 3/2) / 3 = 4/3; or no momentum."""
    strategy, params = GSGM(server_lr=1.0, momentum=0.5, **settings), vec(0)
    for version, (gradients, _) in enumerate(SCRIPT):
        updates = [Update(c, 0, vec(g), "gradient", 1, 0.1) for c, g in gradients.items()]
        params = strategy.aggregate(GlobalModel(params, version), updates)
        np.testing.assert_allclose(params, [expected[version]], rtol=1e-6)
