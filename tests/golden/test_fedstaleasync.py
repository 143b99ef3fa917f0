"""FedStaleAsync against hand-derived values, N = 4, K = 2, a = b = 1, rho = 1/2, w = 0 each time.

t   client: gradient, base    alpha   p
1   0: [4, 0], 1              1       1/2       v = 1/4 ([4, 0] / p + 1/2 [0, 6] / p)
    1: [0, 6], 0              1/2     1/2         = [2, 1.5]
    then p = 3/4, 3/4, others 1/4
3   0: [8, 0], 3              1       3/4       beta(2) h_0 = [4, 0] / 3, beta(3) h_1 = [0, 6] / 4
    2: [0, 4], 3              1       1/4       mean beta_0 = 1/3
        4 v = [4/3, 3/2] + [8, 0] / (3/4) - 1/3 [4, 0] / (3/4) + [0, 4] / (1/4)
            = [4/3 + 32/3 - 16/9, 3/2 + 16] = [92/9, 35/2]
    then p = 7/8, 3/8, 5/8
4   1: [0, 2], 4              1       3/8       beta: 1/2 [8, 0], 1/5 [0, 6], 1/2 [0, 4]
    0: [0, 0], 4              1       7/8       mean beta_1 = (1/4 + 1/5) / 2 = 0.225
        4 v = [4 - 1/2 8 / (7/8), 1.2 + 2 + 2 / (3/8) - 0.225 6 / (3/8)]
            = [4 - 32/7, 3.2 + 16/3 - 3.6] = [-4/7, 4.9333333]
"""

import numpy as np
from helpers import vec

from fl_app.algorithms.fedstaleasync import FedStaleAsync
from fl_app.core.types import GlobalModel, Update

SCRIPT = [
    (1, [(0, [4, 0], 1), (1, [0, 6], 0)], [2, 1.5]),
    (3, [(0, [8, 0], 3), (2, [0, 4], 3)], [23 / 9, 35 / 8]),
    (4, [(1, [0, 2], 4), (0, [0, 0], 4)], [-1 / 7, 4.9333333 / 4]),
]


def test_memories_and_uploads_count_by_age_and_participation():
    strategy = FedStaleAsync(
        upload_exponent=1.0, memory_exponent=1.0, participation_rate=0.5, num_clients=4
    )
    for version, batch, expected in SCRIPT:
        updates = [Update(c, base, vec(*g), "pseudo", 10, 0.1) for c, g, base in batch]
        moved = strategy.aggregate(GlobalModel(vec(0, 0), version), updates)
        np.testing.assert_allclose(-moved, expected, rtol=1e-6)


def test_a_participation_that_is_not_estimated_is_that_of_the_aggregation():
    """K / N = 1/2: (1/2) 4 / (1/2). Then K / N = 1: (1/2) (4 + [4 - 4] + 4)."""
    strategy = FedStaleAsync(
        participation_rate=0.0, num_clients=2, upload_exponent=0.0, memory_exponent=0.0
    )
    updates = [Update(c, 0, vec(4), "pseudo", 10, 0.1) for c in (0, 1)]
    assert strategy.aggregate(GlobalModel(vec(0), 0), updates[:1]).tolist() == [-4]
    assert strategy.aggregate(GlobalModel(vec(0), 0), updates).tolist() == [-4]


def test_buffers_take_a_stale_upload_like_a_fresh_one():
    model = GlobalModel(vec(0, 0), 3, num_trainable=1)
    for base in (0, 3):
        update = Update(0, base, vec(4, 4), "pseudo", 10, 0.1)
        assert FedStaleAsync(num_clients=2).aggregate(model, [update])[1] == -4


def test_no_participation_is_estimated_below_a_tenth_of_the_mean():
    """N = 2, K = 1, rho = 1: client 0 has p = 1 and others 0, so client 1 has 0.1 / 2."""
    strategy = FedStaleAsync(upload_exponent=0.0, participation_rate=1.0, num_clients=2)
    model = GlobalModel(vec(0, 0), 0)
    strategy.aggregate(model, [Update(0, 0, vec(1, 0), "pseudo", 10, 0.1)])
    moved = strategy.aggregate(model, [Update(1, 0, vec(0, 1), "pseudo", 10, 0.1)])
    np.testing.assert_allclose(moved, [-1 / 2, -1 / 2 / 0.05], rtol=1e-6)


def test_buffers_take_the_mean_of_the_uploads():
    model = GlobalModel(vec(0, 0), 0, num_trainable=1)
    updates = [Update(c, 0, vec(0, 4 * c), "pseudo", 10, 0.1) for c in range(2)]
    np.testing.assert_allclose(FedStaleAsync(num_clients=9).aggregate(model, updates), [0, -2])
