"""SAFL against hand-derived values: w_t = [1, 1], eta = 2, n = 10 and 30, tau = 1 and 6.

p = [10/40 / 1, 30/40 / 6] = [1/4, 1/8], not normalised
[1 - 2 1/4 2, 1 - 2 1/8 4] = [0, 0]
"""

import numpy as np
from helpers import vec

from fl_app.algorithms.safl import SAFL
from fl_app.core.types import GlobalModel, Update


def test_weights_are_examples_over_staleness():
    model = GlobalModel(vec(1, 1), version=5)
    updates = [
        Update(0, 5, vec(2, 0), "gradient", 10, 0.1),
        Update(1, 0, vec(0, 4), "gradient", 30, 0.1),
    ]
    np.testing.assert_allclose(SAFL(server_lr=2).aggregate(model, updates), [0, 0], atol=1e-7)


def test_models_are_mixed_if_asked():
    """w = 1, local models 3 (n 10, age 0) and 5 (n 30, age 2): p = 1/4 each, normalised 1/2;
    alpha = 1/2: 1/2 + 1/2 (3 + 5) / 2 = 2.5."""
    model = GlobalModel(vec(1), 4, {2: vec(0)})
    updates = [Update(0, 4, vec(2), "delta", 10, 0.1), Update(1, 2, vec(5), "delta", 30, 0.1)]
    strategy = SAFL(form="model", mixing=0.5)
    np.testing.assert_allclose(strategy.aggregate(model, updates), [2.5])
