"""WKAFL against hand-derived values (Zhou et al. 2022, Algorithm 2), w_t = [1, 1].

One aggregation of [1, 0] of age 0 and [0, 1], [-1, 0] of age 1; s_min = 0.3, beta = 2, eta_0 = 0.5:

    a    = [1, 0.7357589, 0.7357589], sum 2.4715178
    gbar = [1 - 0.7357589, 0.7357589] / 2.4715178 = [0.1069145, 0.2976952], length 0.3163117
    s    = [0.3380036, 0.9411448, -0.3380036]: the third is not selected
    q    = [exp(0.6760072), exp(1.8822896)] = [1.966012, 6.568527]
    p    = [0.2303595, 0.7696405, 0] = g
    w    = [1, 1] - 0.5 [0.2303595, 0.7696405] = [0.8848203, 0.6151797]    (tau_min = 0)

With the staleness weight used again q_2 = 6.568527 0.7357589 = 4.832852 and
p = [0.2891677, 0.7108323].
"""

import math

import numpy as np
import pytest
from helpers import update_of, vec

from fl_app.algorithms.wkafl import WKAFL
from fl_app.core.types import GlobalModel


def update(*gradient, age=0, loss=1.0):
    return update_of(0, 5 - age, *gradient, kind="gradient", loss=loss)


def strategy(**settings):
    """All parts are off, except those in `settings`."""
    off = {"server_lr": 1.0, "momentum": 0.0, "similarity_sharpness": 0.0, "lr_decay": 0.0}
    return WKAFL(**{**off, "min_similarity": -1.0, "clip_norm": None, **settings})


MODEL = GlobalModel(vec(1, 1), version=5)
THREE = [update(1, 0), update(0, 1, age=1), update(-1, 0, age=1)]
PAIR = [update(4, 0), update(0, 3)]
LONG = [update(6, 8), update(0, 1)]
NONE = [update(0, 0)]
SELECTING = {"server_lr": 0.5, "similarity_sharpness": 2.0, "min_similarity": 0.3}
HINDSIGHT = {**SELECTING, "momentum": 0.4}
MEAN_LOSS = {"relative_clip": 1, "stage_rule": "mean_loss"}


@pytest.mark.parametrize(
    ("settings", "aggregations", "steps"),
    [
        (SELECTING, [THREE], [(0.1151797, 0.3848203)]),
        # With all parts off, ages have no part in the step: the mean.
        ({}, [THREE], [(0, 1 / 3)]),
        # Momentum of the aggregation before: g = 0 + 0.4 G, estimated or aggregated.
        (HINDSIGHT, [THREE, NONE], [(0.1151797, 0.3848203), (0.2 * 0.1069145, 0.2 * 0.2976952)]),
        (
            {**HINDSIGHT, "momentum_source": "aggregated"},
            [THREE, NONE],
            [(0.1151797, 0.3848203), (0.2 * 0.2303595, 0.2 * 0.7696405)],
        ),
        # It counts once: [2, 0], then [0, 1] + 0.5 [2, 0] = gbar = G, then [0, 0] + 0.5 [1, 1].
        ({"momentum": 0.5}, [[update(2, 0)], [update(0, 1)], NONE], [(2, 0), (1, 1), (0.5, 0.5)]),
        ({"momentum": 0.5, "history": False}, [[update(2, 0)], NONE], [(2, 0), (0, 0)]),
        # The absolute clip follows momentum and precedes the estimate: G = [3, 0];
        # [5, 8] + [1, 0] = [6, 8] of length 10, to length 5: [3, 4] = G; then G / 3.
        (
            {"momentum": 1 / 3, "clip_norm": 5},
            [[update(3, 0)], [update(5, 8)], NONE],
            [(3, 0), (3, 4), (1, 4 / 3)],
        ),
        # The rate falls with the least age: tau_min = 3, 1 / (1 + 0.5 3) = 0.4.
        ({"lr_decay": 0.5}, [[update(1, 0, age=3), update(1, 0, age=4)]], [(0.4, 0)]),
        # Stage two clips relatively to the estimate: gbar = [2, 1.5] of length 2.5; B = 1:
        # [2.5, 0], [0, 2.5]. Version 5 becomes version 6.
        ({"relative_clip": 1, "stage_two_at": 7}, [PAIR], [(2, 1.5)]),
        ({"relative_clip": 1, "stage_two_at": 6}, [PAIR], [(1.25, 1.25)]),
        ({**MEAN_LOSS, "stage_two_loss": 0.99}, [PAIR], [(2, 1.5)]),
        ({**MEAN_LOSS, "stage_two_loss": 1.0}, [PAIR], [(1.25, 1.25)]),
        # (0.4 + 0.8) / 2 <= 0.6 begins stage two; a later loss of 9 does not end it.
        (
            {**MEAN_LOSS, "stage_two_loss": 0.61},
            [[update(4, 0, loss=0.4), update(0, 3, loss=0.8)], [update(4, 0, loss=9), PAIR[1]]],
            [(1.25, 1.25), (1.25, 1.25)],
        ),
        # cos([1, 0], [1/2, 1/2]) = 0.71 < 0.9 for both: the step is along gbar, unclipped.
        (
            {"min_similarity": 0.9, "stage_two_at": 1, "relative_clip": 0.1},
            [[update(1, 0), update(0, 1)]],
            [(0.5, 0.5)],
        ),
        # A zero gradient is similar to nothing.
        ({"min_similarity": 0.3}, [[update(0, 0), update(1, 0)], NONE], [(1, 0), (0, 0)]),
        # Without selection g = gbar, in stage two as well.
        (
            {**SELECTING, "select": False, "stage_two_at": 1, "relative_clip": 0.1},
            [THREE],
            [(0.5 * 0.1069145, 0.5 * 0.2976952)],
        ),
        # Without staleness gbar = [0, 1/3] of THREE: s = [0, 1, 0]; and no decay of the rate.
        (
            {"min_similarity": 0.3, "staleness": False, "lr_decay": 1.0},
            [THREE, [update(1, 0, age=4)]],
            [(0, 1), (1, 0)],
        ),
        # Similarity is that of the clipped gradients. CB = 5: [6, 8] becomes [3, 4];
        # gbar = [1.5, 2.5] of length 2.9154759.
        # s = [14.5 / 14.5773797, 2.5 / 2.9154759] = [0.9946918, 0.8574929];  beta = 2:
        # p_1 = 1 / (1 + exp(2 (0.8574929 - 0.9946918))) = 0.5681719
        (
            {"clip_norm": 5, "similarity_sharpness": 2.0},
            [LONG],
            [(0.5681719 * 3, 0.5681719 * 4 + 0.4318281)],
        ),
        # The relative clip goes by the lengths after the first. CB = 5, B = 1: [3, 4] to length
        # 2.9154759, which is [1.7492856, 2.3323808]; then the mean.
        ({"clip_norm": 5, "relative_clip": 1, "stage_two_at": 1}, [LONG], [(0.8746428, 1.6661904)]),
    ],
)
def test_the_steps_of_aggregations(settings, aggregations, steps):
    wkafl = strategy(**settings)
    for updates, step in zip(aggregations, steps, strict=True):
        params = wkafl.aggregate(MODEL, updates)
        np.testing.assert_allclose(1 - params, step, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "updates", "weights"),
    [
        (SELECTING, THREE, [0.2303595, 0.7696405, 0]),
        ({**SELECTING, "reuse_staleness_weight": True}, THREE, [0.2891677, 0.7108323, 0]),
        # s = [0.8, 0.6], exp(5 0.8) / exp(5 0.6) = e; the stage has no part in it.
        (
            {"relative_clip": 1, "stage_two_at": 1, "similarity_sharpness": 5},
            PAIR,
            [1 / (1 + math.exp(-1)), 1 / (1 + math.e)],
        ),
        # Equal to the threshold passes.
        ({"min_similarity": 1.0}, [update(3, 0), update(5, 0)], [0.5, 0.5]),
        ({"min_similarity": 0.3}, [update(0, 0), update(1, 0)], [0, 1]),
    ],
)
def test_weights(settings, updates, weights):
    wkafl = strategy(**settings)
    wkafl.aggregate(MODEL, updates)
    assert wkafl.report["weight"] == pytest.approx(weights)
    assert wkafl.report["kept"] == np.count_nonzero(weights)


def test_a_far_older_gradient_beside_a_zero_one_is_selected():
    """gbar = (e/2)^(-190) [3, 4] / 1, of length 2e-25: its square is no float32, its direction is.

    s = 0 and 1, so p = [0, 1].
    """
    wkafl = strategy(min_similarity=0.3)
    updates = [update(0, 0, age=-195), update(3, 4, age=-5)]
    params = wkafl.aggregate(GlobalModel(vec(1, 1), version=200), updates)
    np.testing.assert_allclose(params, [-2, -3], rtol=1e-6)
    assert wkafl.report["kept"] == 1
