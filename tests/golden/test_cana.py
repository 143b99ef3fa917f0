"""CANA against hand-derived values, p = 1, rho = 1/2, N = 3, K = 2, eta = 1, w = 0 each time.

t   client: gradient, base    a             memories (s)
0   0: [4, 0], 0              1/2           none
    1: [0, 2], 0              1/2           v = [2, 1]
1   0: [5, 2], 1              2/3           h_0 = [4, 0] (0), h_1 = [0, 2] (0): H = [2, 1]
    1: [3, 3], 0              1/3
        gbar = [4, 2.5], hbar = [2, 1]: <[1, -.5], [2, -1]> 2 / (|[2, -1]|^2 2) = 5 / 10, beta = 1/2
        v = [13/3, 7/3] - 1/2 [8/3, 2/3] + 1/2 [2, 1] = [4, 2.5]
3   0: [1, 1], 3              2/3           h_0 = [5, 2] (1), h_1 = [3, 3] (0)
    2: [3, 0], 2              1/3           b = [1/3, 1/4] 12/7: H = [29/7, 17/7]; R = {0}, no b^
        v = [5/3, 2/3] - 1/2 2/3 [5, 2] + 1/2 2/3 H = [29/21, 17/21]
4   0: [0, 2], 4              1/2           h_0 = [1, 1] (3), h_1 = [3, 3] (0), h_2 = [3, 0] (2)
    2: [2, 0], 4              1/2           b = [15, 6, 10] / 31: H = [63/31, 33/31]
        hbar = [2, .5], gbar = [1, 1]: 3 / 2.5 is clipped to 1, beta = 3/4
        v = [1, 1] - 3/4 [2, .5] + 3/4 H = [1.0241935, 1.4233871]

memory_span = 1, A = 1.5, counted from the version that a memory was computed on:
    t = 3: both memories are too old: v = [5/3, 2/3]
    t = 4: only h_0 counts, beta = 1/2: v = [1, 1] - 1/4 [1, 1] + 1/4 [1, 1]
counted from the arrival (h_0 and h_2 arrived at 3, h_1 at 1):
    t = 4: beta = 3/4, b = [3/5, 2/5]: v = [1, 1] - 3/4 [2, .5] + 3/4 [1.8, .6] = [0.85, 1.075]

A memory of exactly the age A counts: h_0 at t = 4 with A = 1; h_0 and h_1 at t = 3 with A = 2
counted from the arrival. rho = 1/4: at t = 4 beta = 3/4 1/2 + 1/4 1 = 5/8.
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.cana import CANA
from fl_app.core.types import GlobalModel, Update

SCRIPT = [
    (0, [(0, [4, 0], 0), (1, [0, 2], 0)]),
    (1, [(0, [5, 2], 1), (1, [3, 3], 0)]),
    (3, [(0, [1, 1], 3), (2, [3, 0], 2)]),
    (4, [(0, [0, 2], 4), (2, [2, 0], 4)]),
]


def cana(**settings) -> CANA:
    own = {"exponent": 1.0, "calibration_rate": 0.5, "memory_span": None, "num_clients": 3}
    return CANA(**(own | settings))


def steps(strategy: CANA) -> list[list[float]]:
    moved = []
    for version, batch in SCRIPT:
        updates = [Update(c, base, vec(*g), "pseudo", 10, 0.1) for c, g, base in batch]
        moved.append((-strategy.aggregate(GlobalModel(vec(0, 0), version), updates)).tolist())
    return moved


@pytest.mark.parametrize(
    ("settings", "later", "beta", "matched"),
    [
        ({}, [[29 / 21, 17 / 21], [1.0241935, 1.4233871]], 0.75, 2),
        ({"memory_dtype": "float16"}, [[29 / 21, 17 / 21], [1.0241935, 1.4233871]], 0.75, 2),
        ({"memory_span": 1.0}, [[5 / 3, 2 / 3], [1, 1]], 0.5, 1),
        ({"memory_span": 1.0, "age_from": "arrived"}, [[5 / 3, 2 / 3], [0.85, 1.075]], 0.75, 2),
        ({"memory_span": 2 / 3}, [[5 / 3, 2 / 3], [1, 1]], 0.5, 1),
        (
            {"memory_span": 4 / 3, "age_from": "arrived"},
            [[29 / 21, 17 / 21], [0.85, 1.075]],
            0.75,
            2,
        ),
        (
            {"calibration_rate": 0.25},
            [[29 / 21, 17 / 21], [1 + 0.625 / 31, 1 + 0.625 * 17.5 / 31]],
            0.625,
            2,
        ),
    ],
)
def test_memories_calibrate_as_far_as_they_help(settings, later, beta, matched):
    """The gradients here are exact in float16."""
    strategy = cana(**settings)
    np.testing.assert_allclose(steps(strategy), [[2, 1], [4, 2.5], *later], rtol=1e-6)
    assert strategy.report["calibration"] == pytest.approx(beta)
    assert strategy.report["matched"] == matched


def test_a_fixed_coefficient_is_not_measured():
    """beta = 1 at t = 1: [13/3, 7/3] - [8/3, 2/3] + [2, 1] = [11/3, 8/3]."""
    strategy = cana(calibration=1.0)
    np.testing.assert_allclose(steps(strategy)[1], [11 / 3, 8 / 3], rtol=1e-6)
    assert strategy.state["measured"] is None


@pytest.mark.parametrize("same", [1.95, 1.51])
def test_equal_memories_measure_nothing_where_their_mean_is_rounded(same: float):
    """Three equal rows less their mean are not zero in float32."""
    strategy = cana()
    model = GlobalModel(vec(0, 0), 0)
    for rows in ([[same, 2.68]] * 3, [[2.6, -0.9], [0.4, -1.1], [0.6, -1.0]]):
        updates = [Update(c, 0, vec(*row), "pseudo", 10, 0.1) for c, row in enumerate(rows)]
        strategy.aggregate(model, updates)
    assert strategy.state["measured"] is None
    assert strategy.report["matched"] == 3


def test_gradients_against_their_memories_are_not_calibrated():
    """b^ = -1 is clipped to 0."""
    strategy = cana()
    model = GlobalModel(vec(0), 0)
    for sign in (1, -1):
        updates = [Update(c, 0, vec(sign * (1 + c)), "pseudo", 10, 0.1) for c in range(2)]
        moved = strategy.aggregate(model, updates)
    assert strategy.report["calibration"] == 0
    np.testing.assert_allclose(moved, [1.5])


def test_both_uploads_of_a_client_are_compared_with_what_was_remembered_before():
    """p = 0, beta = 1, h_0 = [4]: v = 3 - 4 + 4 = 3; then the later one, [1], is remembered."""
    strategy = cana(exponent=0.0, calibration=1.0)
    model = GlobalModel(vec(0), 0)
    strategy.aggregate(model, [Update(0, 0, vec(4), "pseudo", 10, 0.1)])
    updates = [Update(0, 0, vec(g), "pseudo", 10, 0.1) for g in (5, 1)]
    np.testing.assert_allclose(strategy.aggregate(model, updates), [-3])
    assert strategy.memory.row(0).tolist() == [1]


@pytest.mark.parametrize(
    ("exponent", "expected"), [(1.0, [6 / 13, 105 / 248, 1 / 5]), (0.0, [3 / 8, 7 / 18, 1 / 2])]
)
def test_clients_that_take_part_rarely_count_more(exponent, expected):
    """K = 2; weights with p = 1, and with p = 0, which leaves the first factor.

    ages 0, 1   T / n = 1/2   E = 1/4, 3/4   m = 1.5 (1/1.25)^-1, 2.5 (2/1.75)^-1 = 1.875, 2.1875
         2, 4         7/4     E = 5/4, 9/4   m = 3.5 (3/2.25)^-1, 5.5 (5/3.25)^-1 = 2.625, 3.575
         3, 0         5/3     E = 4/3: both of client 0; the older one has a quarter of the other's
    """
    strategy = cana(exponent=exponent, calibration=0.0, fair=True)
    script = [[(0, 0), (1, 1)], [(0, 2), (1, 4)], [(0, 3), (0, 0)]]
    for batch, share in zip(script, expected, strict=True):
        updates = [
            Update(client, 9 - age, vec(*(6 * np.eye(2)[place])), "pseudo", 10, 0.1)
            for place, (client, age) in enumerate(batch)
        ]
        moved = strategy.aggregate(GlobalModel(vec(0, 0), 9), updates)
        np.testing.assert_allclose(moved, [-6 * share, -6 * (1 - share)], rtol=1e-6)


def test_past_steps_are_fused():
    """L = 1, alpha = 1/2: [1, 0]; [0, 1] + [.5, 0]; [-1, 0] + 1/2 [.5, 1] = [-.75, .5]."""
    strategy = cana(calibration=0.0, fusion=0.5, fusion_length=1)
    for version, (g, v) in enumerate(
        [([1, 0], [1, 0]), ([0, 1], [0.5, 1]), ([-1, 0], [-0.75, 0.5])]
    ):
        update = Update(0, version, vec(*g), "pseudo", 10, 0.1)
        moved = strategy.aggregate(GlobalModel(vec(0, 0), version), [update])
        np.testing.assert_allclose(-moved, v, rtol=1e-6)


@pytest.mark.parametrize(("num_clients", "factor"), [(2, 1), (4, 0.5)])
def test_fusion_falls_with_the_number_of_clients(num_clients, factor):
    """L = 2, K = 1, alpha = 1/2: min(1, 2 / N). Steps [1, 0] and [0, 1], then [-2, 0]."""
    strategy = cana(
        calibration=0.0, fusion=0.5, fusion_length=2, fusion_falls=True, num_clients=num_clients
    )
    model = GlobalModel(vec(0, 0), 0)
    for g in ([1, 0], [0, 1], [-2, 0]):
        moved = strategy.aggregate(model, [Update(0, 0, vec(*g), "pseudo", 10, 0.1)])
    np.testing.assert_allclose(moved, [2 - 0.5 * factor, 0])


def moved(strategy: CANA, version: int, *gradients: float) -> float:
    """v of one gradient of each client from 0 on."""
    updates = [Update(c, version, vec(g), "pseudo", 10, 0.1) for c, g in enumerate(gradients)]
    return -float(strategy.aggregate(GlobalModel(vec(0), version), updates)[0])


def test_what_is_fused_is_calibrated():
    """v_0 = 3, h = 4 and 2, H = 3: 6 + 3/2 - 4 + 3, which is also the step that is kept."""
    strategy = cana(calibration=1.0, fusion=0.5, fusion_length=1, exponent=0.0, num_clients=2)
    assert moved(strategy, 0, 4, 2) == 3
    assert moved(strategy, 1, 6) == 6.5
    assert strategy.state["past"].tolist() == [[6.5]]


def test_steps_are_as_long_as_gradients():
    """p = 0: v = [3/2, 2] of length 5/2, mean length 7/2: [2.1, 2.8]. Past steps keep theirs."""
    strategy = cana(exponent=0.0, normalise=True, fusion=0.5, fusion_length=1)
    model = GlobalModel(vec(0, 0), 0)
    updates = [Update(c, 0, vec(*g), "pseudo", 1, 0.1) for c, g in enumerate(([3, 0], [0, 4]))]
    np.testing.assert_allclose(strategy.aggregate(model, updates), [-2.1, -2.8], rtol=1e-6)
    assert strategy.state["past"].tolist() == [[1.5, 2]]


def test_buffers_take_the_weighted_mean():
    """Ages 0 and 1, p = 1: weights 2/3 and 1/3 of the buffers 3 and 6."""
    model = GlobalModel(vec(0, 0), 1, num_trainable=1)
    updates = [Update(0, 1, vec(0, 3), "pseudo", 1, 0.1), Update(1, 0, vec(0, 6), "pseudo", 1, 0.1)]
    np.testing.assert_allclose(cana().aggregate(model, updates), [0, -4])
