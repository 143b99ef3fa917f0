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
from helpers import vec

from fl_app.algorithms.wkafl import WKAFL
from fl_app.core.types import GlobalModel, Update


def update(*gradient: float, age: int = 0, loss: float = 1.0) -> Update:
    return Update(0, 5 - age, vec(*gradient), "gradient", 10, loss)


def strategy(**settings) -> WKAFL:
    """Everything off but what a test asks for."""
    off = {
        "server_lr": 1.0,
        "momentum": 0.0,
        "similarity_sharpness": 0.0,
        "lr_decay": 0.0,
        "min_similarity": -1.0,
        "clip_norm": None,
    }
    return WKAFL(**(off | settings))


MODEL = GlobalModel(vec(1, 1), version=5)
THREE = [update(1, 0), update(0, 1, age=1), update(-1, 0, age=1)]
SELECTING = {"server_lr": 0.5, "similarity_sharpness": 2.0, "min_similarity": 0.3}


def test_selection_by_similarity_to_the_estimate():
    wkafl = strategy(**SELECTING)
    np.testing.assert_allclose(wkafl.aggregate(MODEL, THREE), [0.8848203, 0.6151797], rtol=1e-6)
    assert wkafl.report["weight"] == pytest.approx([0.2303595, 0.7696405, 0])
    assert wkafl.report["kept"] == 2


def test_staleness_weight_used_again():
    wkafl = strategy(**SELECTING, reuse_staleness_weight=True)
    wkafl.aggregate(MODEL, THREE)
    assert wkafl.report["weight"] == pytest.approx([0.2891677, 0.7108323, 0])


@pytest.mark.parametrize(
    ("source", "remembered"),
    [("estimated", [0.1069145, 0.2976952]), ("aggregated", [0.2303595, 0.7696405])],
)
def test_momentum_of_the_aggregation_before(source, remembered):
    """A second upload of [0, 0]: g = 0 + 0.4 G."""
    wkafl = strategy(**SELECTING, momentum=0.4, momentum_source=source)
    wkafl.aggregate(MODEL, THREE)
    params = wkafl.aggregate(MODEL, [update(0, 0)])
    np.testing.assert_allclose(params, 1 - 0.5 * 0.4 * np.array(remembered), rtol=1e-6)


def test_momentum_counts_once():
    """[2, 0], then [0, 1] + 0.5 [2, 0] = [1, 1] = gbar = G, then [0, 0] + 0.5 [1, 1]."""
    wkafl = strategy(momentum=0.5)
    for gradient, step in (([2, 0], [2, 0]), ([0, 1], [1, 1]), ([0, 0], [0.5, 0.5])):
        params = wkafl.aggregate(MODEL, [update(*gradient)])
        np.testing.assert_allclose(params, 1 - np.array(step))


def test_absolute_clip_follows_momentum_and_precedes_the_estimate():
    """G = [3, 0]; [5, 8] + [1, 0] = [6, 8] of length 10, to length 5: [3, 4] = G; then G / 3."""
    wkafl = strategy(momentum=1 / 3, clip_norm=5)
    wkafl.aggregate(MODEL, [update(3, 0)])
    np.testing.assert_allclose(wkafl.aggregate(MODEL, [update(5, 8)]), [-2, -3], rtol=1e-6)
    np.testing.assert_allclose(wkafl.aggregate(MODEL, [update(0, 0)]), [0, -1 / 3], atol=1e-6)


def test_rate_falls_with_the_least_age():
    """tau_min = 3: 1 / (1 + 0.5 3) = 0.4."""
    params = strategy(lr_decay=0.5).aggregate(MODEL, [update(1, 0, age=3), update(1, 0, age=4)])
    np.testing.assert_allclose(params, [0.6, 1])


PAIR = [update(4, 0), update(0, 3)]


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"stage_two_at": 7}, [2, 1.5]),
        ({"stage_two_at": 6}, [1.25, 1.25]),
        ({"stage_rule": "mean_loss", "stage_two_loss": 0.99}, [2, 1.5]),
        ({"stage_rule": "mean_loss", "stage_two_loss": 1.0}, [1.25, 1.25]),
    ],
)
def test_stage_two_clips_relatively_to_the_estimate(settings, step):
    """gbar = [2, 1.5] of length 2.5; B = 1: [2.5, 0], [0, 2.5]. Version 5 becomes version 6."""
    params = strategy(relative_clip=1, **settings).aggregate(MODEL, PAIR)
    np.testing.assert_allclose(params, 1 - np.array(step), rtol=1e-6)


def test_mean_loss_of_the_clients_and_no_way_back():
    """(0.4 + 0.8) / 2 <= 0.6 begins stage two; a later loss of 9 does not end it."""
    wkafl = strategy(relative_clip=1, stage_rule="mean_loss", stage_two_loss=0.61)
    wkafl.aggregate(MODEL, [update(4, 0, loss=0.4), update(0, 3, loss=0.8)])
    assert wkafl.state["stage"] == 2
    params = wkafl.aggregate(MODEL, [update(4, 0, loss=9), update(0, 3, loss=9)])
    np.testing.assert_allclose(params, [-0.25, -0.25], rtol=1e-6)


def test_weights_are_exponential_in_similarity():
    """s = [0.8, 0.6], exp(5 0.8) / exp(5 0.6) = e; the stage has no part in it."""
    wkafl = strategy(relative_clip=1, stage_two_at=1, similarity_sharpness=5)
    wkafl.aggregate(MODEL, PAIR)
    first = 1 / (1 + math.exp(-1))
    assert wkafl.report["weight"] == pytest.approx([first, 1 - first])


def test_nobody_passes():
    """cos([1, 0], [1/2, 1/2]) = 0.71 < 0.9 for both: the step is along gbar, unclipped."""
    wkafl = strategy(min_similarity=0.9, stage_two_at=1, relative_clip=0.1)
    params = wkafl.aggregate(MODEL, [update(1, 0), update(0, 1)])
    np.testing.assert_allclose(params, [0.5, 0.5])
    assert wkafl.report["kept"] == 0


def test_equal_to_the_threshold_passes():
    wkafl = strategy(min_similarity=1.0)
    wkafl.aggregate(MODEL, [update(3, 0), update(5, 0)])
    assert wkafl.report["kept"] == 2


def test_zero_gradients_are_not_similar():
    wkafl = strategy(min_similarity=0.3)
    np.testing.assert_allclose(wkafl.aggregate(MODEL, [update(0, 0), update(1, 0)]), [0, 1])
    assert wkafl.report["weight"] == [0, 1]
    np.testing.assert_allclose(wkafl.aggregate(MODEL, [update(0, 0)]), [1, 1])


def test_a_far_older_gradient_beside_a_zero_one_is_selected():
    """gbar = (e/2)^(-190) [3, 4] / 1, of length 2e-25: its square is no float32, its direction is.

    s = 0 and 1, so p = [0, 1].
    """
    wkafl = strategy(min_similarity=0.3)
    model = GlobalModel(vec(1, 1), version=200)
    zero, old = (
        Update(0, version, vec(*gradient), "gradient", 10, 1.0)
        for version, gradient in ((200, (0, 0)), (10, (3, 4)))
    )
    np.testing.assert_allclose(wkafl.aggregate(model, [zero, old]), [-2, -3], rtol=1e-6)
    assert wkafl.report["kept"] == 1


def test_without_selection():
    """g = gbar, in stage two as well."""
    wkafl = strategy(**SELECTING, select=False, stage_two_at=1, relative_clip=0.1)
    params = wkafl.aggregate(MODEL, THREE)
    np.testing.assert_allclose(params, [1 - 0.5 * 0.1069145, 1 - 0.5 * 0.2976952], rtol=1e-6)
    assert "kept" not in wkafl.report


def test_without_staleness():
    """gbar = [0, 1/3] of THREE: s = [0, 1, 0]; and no decay of the rate."""
    wkafl = strategy(min_similarity=0.3, staleness=False, lr_decay=1.0)
    np.testing.assert_allclose(wkafl.aggregate(MODEL, THREE), [1, 0], atol=1e-6)
    np.testing.assert_allclose(wkafl.aggregate(MODEL, [update(1, 0, age=4)]), [0, 1])


def test_without_history():
    wkafl = strategy(momentum=0.5, history=False)
    wkafl.aggregate(MODEL, [update(2, 0)])
    np.testing.assert_allclose(wkafl.aggregate(MODEL, [update(0, 0)]), [1, 1])


def test_buffers_are_mixed_and_nothing_else():
    """Trainable [1], [1]: p = 1/2 each; buffers 4 and 0 move by 2, beside clip and momentum."""
    wkafl = strategy(momentum=0.5, clip_norm=0.5)
    model = GlobalModel(vec(1, 1), version=5, num_trainable=1)
    for _ in range(2):
        params = wkafl.aggregate(model, [update(1, 4), update(1, 0)])
        np.testing.assert_allclose(params, [0.5, -1])


LONG = [update(6, 8), update(0, 1)]


def test_similarity_is_that_of_the_clipped_gradients():
    """CB = 5: [6, 8] becomes [3, 4]; gbar = [1.5, 2.5] of length 2.9154759.

    s = [14.5 / 14.5773797, 2.5 / 2.9154759] = [0.9946918, 0.8574929];  beta = 2:
    p_1 = 1 / (1 + exp(2 (0.8574929 - 0.9946918))) = 0.5681719
    """
    wkafl = strategy(clip_norm=5, similarity_sharpness=2.0)
    params = wkafl.aggregate(MODEL, LONG)
    assert wkafl.report["weight"] == pytest.approx([0.5681719, 0.4318281])
    expected = [1 - 0.5681719 * 3, 1 - 0.5681719 * 4 - 0.4318281]
    np.testing.assert_allclose(params, expected, rtol=1e-5)


def test_the_relative_clip_goes_by_the_lengths_after_the_first():
    """CB = 5, B = 1: [3, 4] to length 2.9154759, which is [1.7492856, 2.3323808]; then the mean."""
    params = strategy(clip_norm=5, relative_clip=1, stage_two_at=1).aggregate(MODEL, LONG)
    np.testing.assert_allclose(params, [1 - 0.8746428, 1 - 1.6661904], rtol=1e-5)
