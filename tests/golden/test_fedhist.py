"""FedHist against hand-derived values (Jiang et al. 2023, Algorithm 1), w_t = [0, 0], eta = 1.

HAA with h = 2, c_0 = 0.5, gamma = 0.5, lambda = 0.5; client: gradient, tau:

    round 1 (t = 0)   0: [1, 0], 1    1: [0, 1], 1     U = 0: p = [1/2, 1/2]
    round 2 (t = 1)   2: [1, 1], 2    3: [5, -5], 1
        L_0 = round 1, L_1 = round 2; S = tau 1 of L_0, tau 2 of L_1 = [1, 0], [0, 1], [1, 1]
        gpred = [2/3, 2/3]; c = 0.7071068 >= c_0 for both clients of L_0
        Util = (0.7071068 - 0.5) 3 (1 - 0.7357589) = 0.1641784;  U_0 = U_1 = 0.0820892
    round 3 (t = 2)   0: [1, 0], 2    4: [0, 1], 1
        ph = [0.5413411 + 0.5 0.0820892, 0.7357589] = [0.5823857, 0.7357589]
        p  = [0.4418223, 0.5581777],  w = -p
        L_0 = round 2, L_1 = round 3; S = [5, -5], [1, 0];  gpred = [3, -2.5], length 3.9051248
        client 2: c = 0.5 / (1.4142136 3.9051248) = 0.0905357 < c_0
            Util = (0.0905357 - 0.5) 2 0.5413411 = -0.4433197;  U_2 = -0.2216598
        client 3: c = 27.5 / (7.0710678 3.9051248) = 0.9958932 >= c_0
            Util = (0.9958932 - 0.5) 2 (1 - 0.7357589) = 0.2620708;  U_3 = 0.1310354
"""

import math
from collections import defaultdict

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.fedhist import FedHist
from fl_app.core.types import GlobalModel, Update


def update(*gradient, client=0, version=0, tau=1):
    return Update(client, version - tau + 1, vec(*gradient), "pseudo", 10, 1.0, rate_sum=0.5)


def strategy(**settings):
    """All parts are off, except those in `settings`."""
    return FedHist(**({"server_lr": 1.0, "egs": False, "haa": False, "ina": False} | settings))


def step(fedhist, version, *updates):
    """The step -w_{t+1} from w_t = 0."""
    model = GlobalModel(vec(*[0.0] * updates[0].vector.size), version)
    return (-fedhist.aggregate(model, updates)).tolist()


# -- HAA ------------------------------------------------------------------------------------------

ROUND_1 = [update(1, 0, client=0), update(0, 1, client=1)]
ROUND_2 = [update(1, 1, client=2, version=1, tau=2), update(5, -5, client=3, version=1)]
ROUND_3 = [update(1, 0, client=0, version=2, tau=2), update(0, 1, client=4, version=2)]


def hindsight(**settings):
    return strategy(
        haa=True,
        buffer_length=2,
        similarity_threshold=0.5,
        utility_rate=0.5,
        utility_weight=0.5,
        **settings,
    )


def test_utilities_weigh_clients():
    fedhist = hindsight()
    assert step(fedhist, 0, *ROUND_1) == [0.5, 0.5]
    assert fedhist.state["utility"] == {}
    step(fedhist, 1, *ROUND_2)
    assert fedhist.report["reference_size"] == 3
    assert fedhist.state["utility"] == pytest.approx({0: 0.0820892, 1: 0.0820892}, abs=1e-6)
    assert step(fedhist, 2, *ROUND_3) == pytest.approx([0.4418223, 0.5581777])
    assert fedhist.report["reference_size"] == 2
    assert fedhist.report["utility"] == pytest.approx([0.0820892, 0])
    assert fedhist.state["utility"] == pytest.approx(
        {0: 0.0820892, 1: 0.0820892, 2: -0.2216598, 3: 0.1310354}, abs=1e-6
    )


def test_utility_moves_by_its_rate():
    """h = 1: client 0 is alone in S twice, c = 1: U = 0.5 0.1321206, then 0.75 0.1321206."""
    fedhist = strategy(haa=True, buffer_length=1, similarity_threshold=0.5, utility_rate=0.5)
    gain = 0.5 * (1 - 2 / math.e)
    for version, share in enumerate([0.5, 0.75]):
        step(fedhist, version, update(1, 0, version=version))
        assert fedhist.state["utility"][0] == pytest.approx(share * gain)


def test_weights_do_not_become_negative():
    """U_2 = -9: 0.7357589 - 0.9 < 0 counts 0; if all weights are 0, all count the same."""
    fedhist = strategy(haa=True, buffer_length=2, utility_weight=0.1)
    fedhist.state["utility"] = {2: -9.0, 3: -9.0}
    assert step(fedhist, 0, update(1, 0, client=2), update(0, 1, client=5)) == [0, 1]
    assert step(fedhist, 0, update(1, 0, client=2), update(0, 1, client=3)) == [0.5, 0.5]


@pytest.mark.parametrize("settings", [{"haa": False}, {"haa": True, "buffer_length": 0}])
def test_without_utilities_freshness_weighs(settings):
    """tau = 1 and 2: p = [1, 0.7357589] / 1.7357589."""
    fedhist = strategy(**settings)
    result = step(fedhist, 4, update(1, 0, version=4), update(0, 1, version=4, tau=2))
    assert result == pytest.approx([0.5761169, 0.4238831])
    assert fedhist.state["local"] == []


# -- EGS ------------------------------------------------------------------------------------------


def test_gradients_are_fused_with_the_most_opposite_past_step():
    """h = 2, alpha = 0.5; steps [1, 0] and [-1, 1] (no fusion before the buffer holds both).

    [1, -1] opposes [-1, 1] (cos 0.71 and -1): [1, -1] + 0.5 [-1, 1] = [0.5, -0.5]
    then G is [-1, 1], [0.5, -0.5]: [0, 2] opposes the second (cos 0.71 and -0.71): [0.25, 1.75]
    """
    fedhist = strategy(egs=True, buffer_length=2, fusion=0.5)
    assert step(fedhist, 0, update(1, 0)) == [1, 0]
    assert step(fedhist, 1, update(-1, 1, version=1)) == [-1, 1]
    assert step(fedhist, 2, update(1, -1, version=2)) == [0.5, -0.5]
    assert step(fedhist, 3, update(0, 2, version=3)) == [0.25, 1.75]


def test_every_gradient_has_its_own_opposite():
    """G = [1, 0], [0, 1]; [-2, 0] opposes the first, [0, -2] the second: -1 + 0.5/2 each."""
    fedhist = strategy(egs=True, buffer_length=2, fusion=0.5)
    step(fedhist, 0, update(1, 0))
    step(fedhist, 1, update(0, 1, version=1))
    assert step(fedhist, 2, update(-2, 0, version=2), update(0, -2, version=2)) == [-0.75, -0.75]


def test_of_equally_opposite_steps_the_oldest_is_taken():
    """[0, 0] has cosine 0 with all: + [1, 0], older than [0, 1]; then + [0, 1], older than that."""
    fedhist = strategy(egs=True, buffer_length=2, fusion=1.0)
    for version, gradient in enumerate([[1, 0], [0, 1]]):
        step(fedhist, version, update(*gradient, version=version))
    assert step(fedhist, 2, update(0, 0, version=2)) == [1, 0]
    assert step(fedhist, 3, update(0, 0, version=3)) == [0, 1]


# -- INA ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "settings", "left"),
    [(0, {}, 0.9), (3, {}, 0.6), (40, {}, 0.05), (40, {"norm_floor": 0.5}, 0.5)],
)
def test_steps_are_as_long_as_the_mean_upload(version, settings, left):
    """[3, 0], [0, 4]: g = [1.5, 2] of length 2.5 becomes (1 - 0.1 r) 3.5 long, r = t + 1."""
    fedhist = strategy(ina=True, norm_decay=0.1, **settings)
    result = step(fedhist, version, update(3, 0, version=version), update(0, 4, version=version))
    assert result == pytest.approx([1.5 / 2.5 * 3.5 * left, 2 / 2.5 * 3.5 * left])


def test_a_zero_step_stays_zero():
    assert step(strategy(ina=True), 0, update(1, 0), update(-1, 0)) == [0, 0]


def test_the_remembered_step_has_its_final_length():
    """[4, 0], [-2, 0]: g = [1, 0], made 3 long; then [0, 1] + 0.5 [3, 0], made 1 long."""
    fedhist = strategy(egs=True, ina=True, buffer_length=1, fusion=0.5, norm_decay=0)
    assert step(fedhist, 0, update(4, 0), update(-2, 0)) == pytest.approx([3, 0])
    length = math.hypot(1.5, 1)
    assert step(fedhist, 1, update(0, 1, version=1)) == pytest.approx([1.5 / length, 1 / length])


# -- over many rounds -----------------------------------------------------------------------------

CLIENTS, K, H = 30, 5, 4


def test_s_is_the_buffered_uploads_of_one_model_and_the_oldest_round_is_judged():
    """In round r: S = the uploads of rounds r-h+1..r that began at version r - h."""
    rng = np.random.default_rng(0)
    fedhist = FedHist(server_lr=1.0, fusion=0.1, buffer_length=H, norm_decay=0.001)
    base_of = dict.fromkeys(range(CLIENTS), 0)
    base_versions = defaultdict(list)  # round -> base versions of its uploads
    participants = {}
    params = np.zeros(3, np.float32)
    for number in range(1, 40):
        sample = [int(c) for c in rng.choice(CLIENTS, K, replace=False)]
        vectors = [rng.standard_normal(3).astype(np.float32) for _ in sample]
        before = dict(fedhist.state["utility"])
        fedhist.report = {}
        model = GlobalModel(params, number - 1)
        params = fedhist.aggregate(
            model,
            [
                Update(c, base_of[c], v, "pseudo", 10, 1.0)
                for c, v in zip(sample, vectors, strict=True)
            ],
        )
        base_versions[number], participants[number] = [base_of[c] for c in sample], set(sample)
        base_of |= dict.fromkeys(sample, number)

        assert sum(fedhist.report["weight"]) == pytest.approx(1)
        assert min(fedhist.report["weight"]) >= 0
        length = np.mean([np.linalg.norm(v) for v in vectors]) * (1 - 0.001 * number)
        assert np.linalg.norm(params - model.params) == pytest.approx(length, rel=1e-5)
        if number >= H:
            bases = [v for r in range(number - H + 1, number + 1) for v in base_versions[r]]
            assert fedhist.report["reference_size"] == bases.count(number - H)
        after = fedhist.state["utility"]
        changed = {c for c in after if after[c] != before.get(c)}
        has_verdict = number >= H and fedhist.report["reference_size"] > 0
        assert changed == (participants[number - H + 1] if has_verdict else set())
        assert len(fedhist.state["local"]) == min(number, H - 1)
    lengths = np.linalg.norm(fedhist.state["past"], axis=1)
    np.testing.assert_allclose(fedhist.state["past_lengths"], lengths, rtol=1e-6)


# -- other readings of the paper ------------------------------------------------------------------


def test_raw_gradients_may_be_aggregated():
    """Line 16 of Algorithm 1: nothing is fused."""
    fedhist = strategy(egs=True, buffer_length=1, fusion=0.5, aggregate_raw=True)
    for version, gradient in enumerate([[1, 0], [0, 1]]):
        assert step(fedhist, version, update(*gradient, version=version)) == gradient


@pytest.mark.parametrize(("norm", "expected"), [("raw", [0, 5]), ("fused", [0, 4])])
def test_the_length_may_be_that_of_the_fused_gradients(norm, expected):
    """[4, 0], [-2, 0]: 3 long; then [-3, 4] + [3, 0] is made 5 or 4 long."""
    fedhist = strategy(egs=True, ina=True, buffer_length=1, fusion=1.0, norm_decay=0, ina_norm=norm)
    assert step(fedhist, 0, update(4, 0), update(-2, 0)) == pytest.approx([3, 0])
    assert step(fedhist, 1, update(-3, 4, version=1)) == pytest.approx(expected)


def test_fusion_may_begin_with_a_partial_buffer():
    """h = 2; [-1, 1] + 0.5 [1, 0]; then G = [1, 0], [-0.5, 1]: [1, -1] + 0.5 [-0.5, 1]."""
    fedhist = strategy(egs=True, buffer_length=2, fusion=0.5, egs_partial=True)
    assert step(fedhist, 0, update(1, 0)) == [1, 0]
    assert step(fedhist, 1, update(-1, 1, version=1)) == [-0.5, 1]
    assert step(fedhist, 2, update(1, -1, version=2)) == [0.75, -0.5]


def test_the_remembered_step_may_have_its_length_before_ina():
    """[4, 0], [-2, 0]: [1, 0] is remembered, [3, 0] the step; [0, 1] + 0.5 [1, 0], 1 long."""
    fedhist = strategy(
        egs=True, ina=True, buffer_length=1, fusion=0.5, norm_decay=0, cache_before_ina=True
    )
    assert step(fedhist, 0, update(4, 0), update(-2, 0)) == pytest.approx([3, 0])
    length = math.hypot(0.5, 1)
    assert step(fedhist, 1, update(0, 1, version=1)) == pytest.approx([0.5 / length, 1 / length])


def test_the_round_before_the_buffers_may_be_judged():
    """h = 1 and one slot more: S = tau 1 of the round before and tau 2 of this one, both [1, 0].

    U_0 = 0.5 (1 - 0.5) 2 (1 - 2/e)
    """
    fedhist = strategy(
        haa=True, buffer_length=1, similarity_threshold=0.5, utility_rate=0.5, extra_slot=True
    )
    step(fedhist, 0, update(1, 0, client=0))
    assert fedhist.state["utility"] == {}
    step(fedhist, 1, update(1, 0, client=1, version=1, tau=2))
    assert fedhist.report["reference_size"] == 2
    assert fedhist.state["utility"] == {0: pytest.approx(0.5 * (1 - 2 / math.e))}


def test_utilities_of_absent_clients_may_fall():
    """h = 1: U_0 = 0.5 0.5 (1 - 2/e), and half of it after a round that judges client 1."""
    fedhist = strategy(
        haa=True, buffer_length=1, similarity_threshold=0.5, utility_rate=0.5, decay_absent=True
    )
    step(fedhist, 0, update(1, 0, client=0))
    step(fedhist, 1, update(1, 0, client=1, version=1))
    gain = 0.25 * (1 - 2 / math.e)
    assert fedhist.state["utility"] == pytest.approx({0: gain / 2, 1: gain})
