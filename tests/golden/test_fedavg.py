"""FedAvg against hand-derived values (McMahan et al. 2017, Algorithm 1).

Two clients with n = 10 and 30 examples, d = 2, w_t = [1, 1]:

    w_1 = [2, 0], w_2 = [6, 4]
    w_{t+1} = 10/40 [2, 0] + 30/40 [6, 4] = [0.5 + 4.5, 0 + 3] = [5, 3]
"""

import numpy as np
from helpers import vec

from fl_app.algorithms.fedavg import FedAvg
from fl_app.core.types import GlobalModel, Update


def test_weights_are_numbers_of_examples():
    model = GlobalModel(vec(1, 1), version=4)
    updates = [
        Update(0, 4, vec(2, 0), "model", 10, 0.1),
        Update(1, 4, vec(6, 4), "model", 30, 0.1),
    ]
    strategy = FedAvg()
    np.testing.assert_allclose(strategy.aggregate(model, updates), [5, 3])
    assert strategy.report["weight"] == [0.25, 0.75]


def test_displacements_count_from_the_version_they_started_from():
    """Delta = [1, -1] from w_2 = [1, 1], and [2, 0] from w_3 = [4, 4]: models [2, 0] and [6, 4]."""
    model = GlobalModel(vec(9, 9), version=4, history={2: vec(1, 1), 3: vec(4, 4)})
    updates = [
        Update(0, 2, vec(1, -1), "delta", 10, 0.1),
        Update(1, 3, vec(2, 0), "delta", 30, 0.1),
    ]
    np.testing.assert_allclose(FedAvg().aggregate(model, updates), [5, 3])
