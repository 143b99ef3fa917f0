"""CA2FL and FedStale against hand-derived values (Wang et al. 2024; Rodio, Neglia 2024).

N = 3, K = 2, eta = 1, w = 0 each time; client: gradient.

    1   0: [2, 0]   1: [0, 4]    nothing is remembered: v = [1, 2]
    2   0: [4, 0]   0: [6, 2]    both with h_0 = [2, 0]; sum h = [2, 4], mean g = [5, 1]
        all:    v = [2, 4] / 3 + [5, 1] - [2, 0] = [3.6666667, 2.3333333]
        heard:  v = [2, 4] / 2 + [5, 1] - [2, 0] = [4, 3]
        beta 1/2, all:  v = [5, 1] + 1/2 ([2, 4] / 3 - [2, 0]) = [4.3333333, 1.6666667]
        then h_0 = [6, 2], the later one
    3   0: [6, 2]   2: [3, 3]    h_2 = 0; sum h = [6, 6], mean g = [4.5, 2.5], mean h = [3, 1]
        all:    v = [2, 2] + [1.5, 1.5] = [3.5, 3.5]
        heard:  v = [3, 3] + [1.5, 1.5] = [4.5, 4.5]
        beta 1/2, all:  v = [4.5, 2.5] + 1/2 ([2, 2] - [3, 1]) = [4, 3]
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.ca2fl import CA2FL
from fl_app.core.types import GlobalModel, Update

SCRIPT = [
    [(0, [2, 0]), (1, [0, 4])],
    [(0, [4, 0]), (0, [6, 2])],
    [(0, [6, 2]), (2, [3, 3])],
]


def steps(strategy: CA2FL) -> list[list[float]]:
    moved = []
    for version, batch in enumerate(SCRIPT):
        model = GlobalModel(vec(0, 0), version)
        updates = [Update(c, 0, vec(*g), "pseudo", 10, 0.1) for c, g in batch]
        moved.append((-strategy.aggregate(model, updates)).tolist())
    return moved


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [[1, 2], [11 / 3, 7 / 3], [3.5, 3.5]]),
        ({"over": "heard"}, [[1, 2], [4, 3], [4.5, 4.5]]),
        ({"calibration": 0.5}, [[1, 2], [13 / 3, 5 / 3], [4, 3]]),
        ({"calibration": 0.0}, [[1, 2], [5, 1], [4.5, 2.5]]),
        ({"memory_dtype": "float16"}, [[1, 2], [11 / 3, 7 / 3], [3.5, 3.5]]),
    ],
)
def test_memories_calibrate_the_mean(settings, expected):
    """The gradients here are exact in float16."""
    strategy = CA2FL(num_clients=3, **settings)
    np.testing.assert_allclose(steps(strategy), expected, rtol=1e-6)


def test_what_is_remembered_is_clipped_as_it_was_used():
    """[0, 10] to length 2: v = [0, 2]; then g = h, so v = (1/2) [0, 2] of two clients."""
    strategy = CA2FL(num_clients=2, clip_norm=2)
    update = Update(0, 0, vec(0, 10), "pseudo", 10, 0.1)
    for expected in ([0, -2], [0, -1]):
        moved = strategy.aggregate(GlobalModel(vec(0, 0), 0), [update])
        np.testing.assert_allclose(moved, expected, rtol=1e-6)


def test_buffers_take_the_mean_and_are_not_remembered():
    """One trainable entry, one buffer, N = 1: the second step is 4/1 + 6 - 4 = 6; buffers 4, 6."""
    strategy = CA2FL(num_clients=1)
    for g in (4, 6):
        model = GlobalModel(vec(0, 0), 0, num_trainable=1)
        moved = strategy.aggregate(model, [Update(0, 0, vec(g, g), "pseudo", 1, 0.1)])
        np.testing.assert_allclose(moved, [-g, -g])
    assert strategy.memory.row(0).tolist() == [6]


def test_small_gradients_do_not_vanish_in_float16():
    """1e-9 is 0 in float16 without a scale; N = 2: v = 1e-9 / 2 + 3e-9 - 1e-9."""
    strategy = CA2FL(num_clients=2, memory_dtype="float16")
    for g in (1e-9, 3e-9):
        moved = strategy.aggregate(GlobalModel(vec(0), 0), [Update(0, 0, vec(g), "pseudo", 1, 0.1)])
    np.testing.assert_allclose(moved, [-2.5e-9], rtol=1e-3)
