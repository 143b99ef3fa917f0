"""FedStaleWeight against hand-derived values (Ma et al. 2024), K = 2, rho = 1/2, eta = 1, w = 0.

client: gradient, age

    1   0: [6, 0], 0    1: [0, 6], 1     E = 0, 1        E K + 1 = 1, 3      p = [1/4, 3/4]
    2   0: [6, 0], 2    1: [0, 6], 4     E = 1, 2.5      E K + 1 = 3, 6      p = [1/3, 2/3]
    3   0: [6, 0], 3    0: [0, 6], 0     E = 2, then 1   E K + 1 = 3, 3      p = [1/2, 1/2]

as printed, E + 1:  1, 2: [1/3, 2/3];  2, 3.5: [4/11, 7/11];  1/2 each
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.fedstaleweight import FedStaleWeight
from fl_app.core.types import GlobalModel, Update

SCRIPT = [[(0, 0), (1, 1)], [(0, 2), (1, 4)], [(0, 3), (0, 0)]]


@pytest.mark.parametrize(
    ("scaled", "expected"),
    [(True, [1 / 4, 1 / 3, 1 / 2]), (False, [1 / 3, 4 / 11, 1 / 2])],
)
def test_clients_that_are_late_on_average_count_more(scaled, expected):
    strategy = FedStaleWeight(rate=0.5, scale_by_buffer=scaled)
    for batch, share in zip(SCRIPT, expected, strict=True):
        updates = [
            Update(client, 9 - age, vec(*(6 * np.eye(2)[place])), "pseudo", 10, 0.1)
            for place, (client, age) in enumerate(batch)
        ]
        moved = strategy.aggregate(GlobalModel(vec(0, 0), 9), updates)
        np.testing.assert_allclose(moved, [-6 * share, -6 * (1 - share)], rtol=1e-6)
    assert strategy.state["ages"] == {0: 1.0, 1: 2.5}
