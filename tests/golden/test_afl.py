"""AFL against hand-derived values: w_t = [1, 1], eta = 2, n = 10 and 30, whatever the ages.

p = [1/4, 3/4]:    [1 - 2 1/4 2, 1 - 2 3/4 4] = [0, -5]
"""

import numpy as np
from helpers import vec

from fl_app.algorithms.afl import AFL
from fl_app.core.types import GlobalModel, Update


def test_weights_are_numbers_of_examples():
    model = GlobalModel(vec(1, 1), version=5)
    updates = [
        Update(0, 5, vec(2, 0), "gradient", 10, 0.1),
        Update(1, 0, vec(0, 4), "gradient", 30, 0.1),
    ]
    np.testing.assert_allclose(AFL(server_lr=2).aggregate(model, updates), [0, -5])


def test_models_are_mixed_if_asked():
    """w = 1, local models 3 (n 10) and 5 (n 30), alpha = 1/2: 1/2 + 1/2 (3/4 + 15/4) = 2.75."""
    model = GlobalModel(vec(1), 4)
    updates = [Update(0, 4, vec(2), "delta", 10, 0.1), Update(1, 4, vec(5), "model", 30, 0.1)]
    strategy = AFL(form="model", mixing=0.5)
    np.testing.assert_allclose(strategy.aggregate(model, updates), [2.75])
    assert strategy.report["weight"] == [0.125, 0.375]
