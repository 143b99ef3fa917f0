"""Server equations that are more than a mean, against hand-derived values.

GSGM (Li et al. 2019): P = 3, K = 2, eta = 1, alpha = 1/2, w_0 = 0.

round  clients  gradients  gm  gu = gm + M/2   w      acc = sum gu k/P
1      0, 1     2, 4       3   3              -3      2 3/3
1      2        6          6   6              -9      2 3/3 + 6/3 = 4 = M
2      1, 0     1, 1       1   3              -12     2 3/3
2      2        0          0   2              -14     2 3/3 + 2/3 = 8/3 = M
3      2, 0     0, 0       0   4/3            -15 1/3

In WKAFL's code acc = sum gu / P: (3 + 6) / 3 = 3, then (1 + 3/2 + 0 + 3/2) / 3 = 4/3.

FADAS (Wang et al. 2024, Algorithm 1), K = 2, b1 = 1/2, b2 = 3/4, eps = 1, eta = 0.5,
w_0 = [1, 1]; displacements, their ages:

    1   [8, 0], [0, 4]; 0, 0      D = [4, 2]      m = [2, 1]      v = [4, 1] = vhat
        m / (sqrt(vhat) + 1) = [2/3, 1/2];        w_1 = [1 + 1/3, 1 + 1/4]
    2   [-4, 0], [0, 0]; 0, 4     D = [-2, 0]     m = [0, 1/2]    v = [4, 3/4], vhat = [4, 1]
        m / (sqrt(vhat) + 1) = [0, 1/4];  max tau = 4 > tau_c = 1
        printed  eta_t = min(1/2, 1/4) = 1/4      w_2 = [4/3, 5/4 + 1/16]
        ratio    eta_t = 0.5 / 4 = 1/8            w_2 = [4/3, 5/4 + 1/32]
        off      eta_t = 1/2                      w_2 = [4/3, 5/4 + 1/8]

AsyncFedED (Wang et al. 2022), lambda = 2, eps = 1/2; w_5 = [3, 4], w_2 = [0, 0], Delta = [0, 2] of
age 3:

    gamma = 5 / 2,    2 / (2.5 + 0.5) = 2/3,    w = [3, 4 + 4/3]

Fresh: gamma = 0, 2 / 0.5 = 4: w = [3, 12]. Both in one aggregation, the stale one first: the fresh
one then finds the model 4/3 away, gamma = 2/3, 2 / (2/3 + 1/2) = 12/7: w = [3, 4 + 4/3 + 24/7].
With half of the rate left at version 5 of 10: w = [3, 4 + 2/3].

REFL (Abdelmoniem et al. 2023), b = 0.5, eta = 1, w_t = [1, 1]. Youngest, so fresh: [2, 0] and
[0, 2] of age 1, hence ubar = [1, 1] and n_F = 2. Stale: [1, -1] of age 3 and [1, 0] of age 5.

    L = ||ubar - (g + 2 ubar) / 3||^2 / 2 = ||ubar - g||^2 / 18 = 4/18 and 1/18: ratios 1 and 1/4
    v = 0.5 / 4 + 0.5 (1 - exp(-1))   = 0.125     + 0.3160603 = 0.4410603
        0.5 / 6 + 0.5 (1 - exp(-1/4)) = 0.0833333 + 0.1105996 = 0.1939329
    sum v = 2 + 0.6349932 = 2.6349932
    sum v g / sum v = [2 + 0.6349932, 2 - 0.4410603] / 2.6349932 = [1, 0.5916295]
    w = [0, 0.4083705]

With scale 10 the exponentials count a tenth:

    v = 0.125 + 0.5 (1 - 0.03678794) = 0.6066060,  0.0833333 + 0.5 (1 - 0.07788008) = 0.5443933
    sum v = 3.1509993,  w = [0, 1 - (2 - 0.6066060) / 3.1509993] = [0, 0.5577931]

Zeno++ (Xie et al. 2020, in the form of WKAFL's code): w_t = [1, 1], eta = 0.5, rho = 0.2,
epsilon = 0.1, v = [3, 4], of length 5.

    g = [0, 2]: g~ = [0, 5], score = 20 - 0.2 25 = 15:     w = [1, 1 - 0.5 5] = [1, -1.5]
    g = [4, -3]: g~ = [4, -3], score = 0 - 5 = -5:         refused
    rho = 0 and g = [4, -3]: score = 0 >= -0.1:            w = [1 - 2, 1 + 1.5] = [-1, 2.5]
"""

import math
import re

import numpy as np
import pytest
from helpers import update_of, vec

import fl_app
from fl_app.algorithms.asyncfeded import AsyncFedED
from fl_app.algorithms.dp_fedbuff import DPFedBuff
from fl_app.algorithms.fadas import FADAS
from fl_app.algorithms.fedsa import FedSA
from fl_app.algorithms.gsgm import GSGM
from fl_app.algorithms.port import PORT
from fl_app.algorithms.refl import REFL
from fl_app.algorithms.zeno import Zeno
from fl_app.core.errors import RunError
from fl_app.core.rates import LinearDecay
from fl_app.core.types import GlobalModel, Update

# -- GSGM -----------------------------------------------------------------------------------------

ROUNDS = [{0: 2, 1: 4}, {2: 6}, {1: 1, 0: 1}, {2: 0}, {2: 0, 0: 0}]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [-3, -9, -12, -14, -14 - 4 / 3]),
        ({"accumulate": "code"}, [-3, -9, -11.5, -13, -13 - 2 / 3]),
        ({"apply_momentum": False}, [-3, -9, -10, -10, -10]),
    ],
)
def test_gsgms_momentum_is_the_mean_step_of_the_round_before(settings, expected):
    strategy, params, models = GSGM(server_lr=1.0, momentum=0.5, **settings), vec(0), []
    for version, gradients in enumerate(ROUNDS):
        updates = [update_of(client, 0, g, kind="gradient") for client, g in gradients.items()]
        params = strategy.aggregate(GlobalModel(params, version), updates)
        models.append(float(params[0]))
    assert models == pytest.approx(expected, rel=1e-6)


# -- FADAS ----------------------------------------------------------------------------------------


def fadas(**settings):
    return FADAS(**({"server_lr": 0.5, "momentum": 0.5, "second_momentum": 0.75} | settings))


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        *(({}, 1 / 16), ({"delay_rule": "ratio"}, 1 / 32)),
        *(({"delay_adaptive": False}, 1 / 8), ({"delay_threshold": 4}, 1 / 8)),
    ],
)
def test_fadas_steps_adapt_to_moments_and_delay(settings, last):
    strategy = fadas(epsilon=1.0, **settings)
    updates = [update_of(0, 5, 8, 0, kind="delta"), update_of(1, 5, 0, 4, kind="delta")]
    first = strategy.aggregate(GlobalModel(vec(1, 1), 5), updates)
    np.testing.assert_allclose(first, [4 / 3, 5 / 4], rtol=1e-6)
    updates = [update_of(0, 6, -4, 0, kind="delta"), update_of(1, 2, 0, 0, kind="delta")]
    second = strategy.aggregate(GlobalModel(first, 6), updates)
    np.testing.assert_allclose(second, [4 / 3, 5 / 4 + last], rtol=1e-6)


def test_fadas_keeps_the_digits_of_a_second_momentum_near_one():
    """m = D, v = 1e-5 D^2: m / sqrt(v) = 1 / sqrt(1e-5) for each entry that ever moved."""
    strategy = fadas(server_lr=1, momentum=0, second_momentum=0.99999, epsilon=1e-8)
    model, update = GlobalModel(vec(0, 0, 0, 0), 0), update_of(0, 0, 1, 2, -3, 0, kind="delta")
    params = strategy.aggregate(model, [update])
    np.testing.assert_allclose(params, np.array([1, 1, -1, 0]) / np.sqrt(1e-5), rtol=1e-5)


def test_fadas_rate_by_age():
    """Printed: where the age is above 1 / eta. A falling rate multiplies the whole."""
    assert [fadas(server_lr=0.2).rate(age) for age in (0, 1, 5, 10)] == [0.2, 0.2, 0.2, 0.1]
    ratio = fadas(server_lr=0.2, delay_rule="ratio")
    assert [ratio.rate(age) for age in (0, 1, 2, 10)] == pytest.approx([0.2, 0.2, 0.1, 0.02])
    half = fadas(epsilon=1.0, lr_schedule=LinearDecay(to=0.0, versions=10))
    params = half.aggregate(GlobalModel(vec(1), 5), [update_of(0, 5, 4, kind="delta")])
    assert params == pytest.approx([1 + 1 / 6])


# -- AsyncFedED -----------------------------------------------------------------------------------

NEAR = GlobalModel(vec(3, 4), 5, {2: vec(0, 0)})
STALE = update_of(0, 2, 0, 2, kind="delta")
FRESH = update_of(1, 5, 0, 2, kind="delta")
STILL = update_of(0, 2, 0, 0, kind="delta")


@pytest.mark.parametrize(
    ("settings", "updates", "step"),
    [
        ({}, [STALE], 4 / 3),
        ({}, [FRESH], 8),
        ({}, [STALE, FRESH], 4 / 3 + 24 / 7),
        ({"lr_schedule": LinearDecay(to=0.0, versions=10)}, [STALE], 2 / 3),
    ],
)
def test_asyncfededs_weight_falls_with_the_distance(settings, updates, step):
    strategy = AsyncFedED(server_lr=2.0, offset=0.5, **settings)
    np.testing.assert_allclose(strategy.aggregate(NEAR, updates), [3, 4 + step], rtol=1e-6)


def test_asyncfededs_zero_upload_has_no_weight_and_leads_to_one_epoch():
    strategy = AsyncFedED(adapt_epochs=True)
    assert strategy.aggregate(NEAR, [STILL]).tolist() == [3, 4]
    assert strategy.report["weight"] == [0]
    assert strategy.report["distance"] == [None]
    assert strategy.dispatch(NEAR, 0)[1] == {"local_epochs": 1}


def test_asyncfededs_lengths_are_of_the_trainable_part():
    """w_5 - w_2 = 3 and Delta = 2, beside a buffer of 40: gamma = 3 / 2, weight 2/5.

    A fresh upload has the weight 2: 6 of the trainable entry, but at most all of the buffer's 3.
    """
    model = GlobalModel(vec(3, 50), 5, {2: vec(0, 0)}, num_trainable=1)
    params = AsyncFedED().aggregate(model, [update_of(0, 2, 2, 40, kind="delta")])
    np.testing.assert_allclose(params, [3 + 2 * 2 / 5, 50 + (40 - 50) * 2 / 5])
    params = AsyncFedED(server_lr=2.0).aggregate(model, [update_of(0, 5, 3, 3, kind="delta")])
    np.testing.assert_allclose(params, [9, 53])


def test_asyncfededs_epochs_follow_the_distance_if_asked():
    """gamma = 2.5, gamma_bar = 1, kappa = 1: 5 + floor(-1.5) = 3; then a fresh one, 3 + 1."""
    strategy = AsyncFedED(adapt_epochs=True)
    assert strategy.dispatch(NEAR, 0)[1] == {"local_epochs": 5}
    for update, epochs in ((STALE, 3), (update_of(0, 5, 0, 2, kind="delta"), 4)):
        strategy.aggregate(NEAR, [update])
        assert strategy.dispatch(NEAR, 0)[1] == {"local_epochs": epochs}
    for _ in range(30):
        strategy.aggregate(NEAR, [FRESH])
        strategy.aggregate(NEAR, [STALE])
    epochs = [strategy.dispatch(NEAR, client)[1]["local_epochs"] for client in (0, 1, 7)]
    assert epochs == [1, 20, 5]
    assert AsyncFedED(local_epochs=30).dispatch(NEAR, 0)[1] == {}
    with pytest.raises(ValueError, match=r"max_epochs=20 must be at least .*local_epochs=30"):
        AsyncFedED(adapt_epochs=True, local_epochs=30)


# -- REFL -----------------------------------------------------------------------------------------


def refl(base, *gradient):
    return update_of(base, base, *gradient, kind="gradient")


@pytest.mark.parametrize(("scale", "expected"), [(1, [0, 0.4083705]), (10, [0, 0.5577931])])
def test_refls_stale_weights_by_age_and_deviation(scale, expected):
    updates = [refl(3, 1, -1), refl(5, 2, 0), refl(1, 1, 0), refl(5, 0, 2)]
    params = REFL(boost=0.5, scale=scale).aggregate(GlobalModel(vec(1, 1), 6), updates)
    np.testing.assert_allclose(params, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("updates", "weights"),
    [
        # ubar = 0: ratio 0, v = 0.5 / 4 + 0.5 (1 - 1) = 1/8, p = 1/8 / (2 + 1/8) = 1/17.
        ([refl(5, 1, 0), refl(5, -1, 0), refl(3, 0, 1)], [8 / 17, 8 / 17, 1 / 17]),
        # L = 0 for all, so its maximum is 0 too: v = 1/8, p = [8, 1] / 9.
        ([refl(5, 1, 0), refl(3, 1, 0)], [8 / 9, 1 / 9]),
        # Fresh [4, 0] and [0, 4] are 8 from ubar = [2, 2]; the stale ones 1 and 4: ratios 1/4, 1.
        # v = 0.5 / 4 + 0.5 (1 - exp(-1/4)) = 0.2355996, 0.5 / 6 + 0.5 (1 - exp(-1)) = 0.3993936
        (
            [refl(5, 4, 0), refl(5, 0, 4), refl(3, 2, 1), refl(1, 2, 0)],
            np.array([1, 1, 0.2355996, 0.3993936]) / 2.6349932,
        ),
    ],
)
def test_refls_weights(updates, weights):
    strategy = REFL(boost=0.5)
    strategy.aggregate(GlobalModel(vec(1, 1), 6), updates)
    np.testing.assert_allclose(strategy.report["weight"], weights, rtol=1e-6)


# -- PORT -----------------------------------------------------------------------------------------


def test_ports_weights_by_age_agreement_and_data():
    """w_3 = (3, 0), w_1 = (1, 0): the global model went along (1, 0).

    Fresh: n 10, cos 1:              10 (1 (1 + 1)/2 + 3 10/10)  = 10 * 4    = 40
    Age 2: n 30, Delta = (0, 2), cos 0: 30 (1 (0 + 1)/2 + 3 10/12) = 30 * 3   = 90
    p = 40/130, 90/130; w_4 = (3, 0) + 40/130 (1, 0) + 90/130 (0, 2).
    """
    model = GlobalModel(vec(3, 0), 3, {1: vec(1, 0), 3: vec(3, 0)})
    strategy = PORT()
    batch = [update_of(0, 3, 1, 0, kind="delta"), update_of(1, 1, 0, 2, kind="delta", examples=30)]
    params = strategy.aggregate(model, batch)
    assert params.tolist() == pytest.approx([3 + 40 / 130, 180 / 130])
    assert strategy.report["weight"] == pytest.approx([40 / 130, 90 / 130])


def test_ports_opposite_updates_count_least():
    """Opposite: cos -1 gives 0 + a Omega / (age + Omega); with a = 0 its weight is 0.

    Buffers never enter the cosine.
    """
    model = GlobalModel(vec(3, 0, 9), 3, {2: vec(2, 0, 0)}, num_trainable=2)
    back, along = update_of(0, 2, -1, 0, 5, kind="delta"), update_of(1, 2, 0.5, 0, -5, kind="delta")
    strategy = PORT(staleness_weight=0.0)
    assert strategy.aggregate(model, [back, along]).tolist()[:2] == [3.5, 0.0]
    assert strategy.report["weight"] == [0, 1]
    assert strategy.aggregate(model, [back]).tolist()[:2] == [2.0, 0.0]  # the only update counts


@pytest.mark.parametrize(
    ("reference", "shares"), [("base", [1 / 3, 2 / 3]), ("two_back", [0.5, 0.5])]
)
def test_port_compares_directions_with_the_base_or_two_versions_back(reference, shares):
    """w = [0, 0], [1, 0], [1, 1]; two uploads of age 1, [1, 0] and [0, 1], a = 0, b = 1.

    base: [0, 1], cosines 0 and 1, u = 1/2, 1.  Two back: [1, 1], both cosines 0.7071068.
    """
    strategy = PORT(staleness_weight=0.0, reference=reference)
    models = [vec(0, 0), vec(1, 0), vec(1, 1)]
    for version, params in enumerate(models):
        model = GlobalModel(params, version, dict(enumerate(models[: version + 1])))
        base = max(0, version - 1)
        strategy.aggregate(model, [update_of(c, base, 1 - c, c, kind="delta") for c in range(2)])
    assert strategy.report["weight"] == pytest.approx(shares)


# -- FedSA (re-interpreted) -----------------------------------------------------------------------


def local_model(version, w, loss):
    return update_of(0, version, w, kind="model", loss=loss)


def test_fedsas_weight_falls_with_age():
    """Age 3: alpha = 0.6 / 2; w = 0.7 * 10 + 0.3 * 20. A second stage has at least one epoch."""
    strategy = FedSA(local_epochs=1)
    assert strategy.aggregate(GlobalModel(vec(10), 3), [local_model(0, 20, 1.0)]).tolist() == [13]
    assert strategy.report == {"weight": [0.3], "stage": 1}
    strategy.state["careful"] = True
    assert strategy.dispatch(GlobalModel(vec(0), 0), 0)[1]["local_epochs"] == 1


def test_fedsas_second_stage_begins_when_the_loss_hardly_falls():
    """40 versions: windows of 2. Losses 4, 4, 3, 3 | 2.98, 2.98: from 3 to 2.98 is below 1 %.

    Then 1 and 1, which fall again, and change nothing any more.
    """
    strategy = FedSA(local_epochs=5, num_versions=40)
    stages = []
    for version, loss in enumerate([4.0, 4.0, 3.0, 3.0, 2.98, 2.98, 1.0, 1.0, 1.0]):
        model = GlobalModel(vec(10), version)
        config = {"local_epochs": 10, "local_lr_factor": 1.0}
        if strategy.state["careful"]:
            config = {"local_epochs": 2, "local_lr_factor": math.sqrt(0.1)}
        assert strategy.dispatch(model, 0)[1] == pytest.approx(config)
        params = strategy.aggregate(model, [local_model(version, 20, loss)])
        stages.append(strategy.report["stage"])
        assert params.tolist() == pytest.approx([16.0 if stages[-1] == 1 else 13.0])
    assert stages == [1, 1, 1, 1, 1, 1, 2, 2, 2]
    unknown = FedSA(num_versions=20)
    for version in range(5):
        unknown.aggregate(GlobalModel(vec(10), version), [local_model(version, 20, math.nan)])
    assert unknown.report["stage"] == 1


# -- Zeno++ ---------------------------------------------------------------------------------------


def zeno(**values):
    """A strategy, and the versions for which it asked for a gradient."""
    strategy, versions = Zeno(server_lr=0.5, **values), []

    def gradient(params, version, num_examples, batch_size):
        versions.append(version)
        return vec(3, 4)

    strategy.prepare(gradient)
    return strategy, versions


@pytest.mark.parametrize(
    ("gradient", "penalty", "expected"),
    [((0, 2), 0.2, (1, -1.5)), ((4, -3), 0.2, None), ((4, -3), 0.0, (-1, 2.5))],
)
def test_zeno_takes_a_gradient_that_agrees_at_the_servers_length(gradient, penalty, expected):
    strategy, _ = zeno(penalty=penalty)
    model, update = GlobalModel(vec(1, 1), 5), update_of(0, 5, *gradient, kind="gradient")
    refusal = strategy.admit(model, update)
    if expected is None:
        assert refusal == "score=-5 is below -strategy.tolerance=-0.1"
    else:
        assert refusal is None
        np.testing.assert_allclose(strategy.aggregate(model, [update]), expected)


def test_zenos_server_computes_a_new_gradient_every_k_versions():
    strategy, versions = zeno(validate_every=2)
    update = update_of(0, 5, 0, 2, kind="gradient")
    for version in (3, 3, 4, 5, 6, 7):
        strategy.admit(GlobalModel(vec(1, 1), version), update)
    assert versions == [3, 5, 7]
    with pytest.raises(RunError, match="needs training examples on the server"):
        Zeno().admit(GlobalModel(vec(1, 1), 0), update)


def test_zeno_learns_from_examples_of_the_server_and_repeats_to_the_bit(tmp_path):
    overrides = ("algorithm=zeno", "num_versions=300", "eval_every=300")
    runs = [fl_app.run(*overrides, output=tmp_path / name, progress=False) for name in "ab"]
    logs = [(tmp_path / name / "events.jsonl").read_bytes() for name in "ab"]
    assert logs[0] == logs[1]
    assert runs[0].metrics["accuracy"].iloc[-1] > 0.5


# -- DP-FedBuff ------------------------------------------------------------------------------------

# DP-FedBuff by hand: clip, one client's share, noise, and its privacy cost.
#
# d = 2, C = 5, eta_g = 1, w_t = (10, 20) at version 4. Four updates, ages 0, 0, 3, 0:
#
#     client 1   (3, 4), length 5: whole                  s = 1
#     client 2   (6, 8), length 10: halved to (3, 4)      s = 1
#     client 3   (0, 2)                                   s(3) = (1 + 3)^(-1/2) = 1/2
#     client 1   (-3, 0), again: its two count half each
#
#     sum of u_i = 1/2 (3, 4) + 1/2 (-3, 0) + (3, 4) + 1/2 (0, 2) = (3, 7)
#     w_{t+1} - w_t = (3, 7)/4
#
# Cost: n releases of the Gaussian mechanism with noise z have the Renyi divergence n a / (2 z^2) at
# every order a > 1, so epsilon <= min_a n a / (2 z^2) + ln(1/delta) / (a - 1)
# = n / (2 z^2) + sqrt(2 n ln(1/delta)) / z; for n = 8, z = 4, delta = 1e-5: 0.25 + 3.393.

PRIVATE_MODEL = GlobalModel(vec(10, 20), 4, {1: vec(0, 0)})


def arrival(client, base, *delta):
    return Update(client, base, vec(*delta), "delta", 10, 0.5)


FOUR = [arrival(1, 4, 3, 4), arrival(2, 4, 6, 8), arrival(3, 1, 0, 2), arrival(1, 4, -3, 0)]


def private(**settings):
    return DPFedBuff(**({"clip_norm": 5.0, "noise_multiplier": 1e-12, "noise_seed": 0} | settings))


def test_the_step_without_noise():
    params = private().aggregate(PRIVATE_MODEL, FOUR)
    np.testing.assert_allclose(params, [10.75, 21.75], rtol=1e-6)


def test_no_client_moves_the_sum_by_more_than_the_bound():
    """With all of one client's updates left out, but the same K: at most C / K away."""
    loud = [arrival(1, 4, 300, 400) for _ in range(3)]
    others = [arrival(2, 4, 1, 0)]
    silent = [arrival(1, 4, 0, 0) for _ in range(3)]
    params, without = (private().aggregate(PRIVATE_MODEL, few + others) for few in (loud, silent))
    assert np.linalg.norm(params - without) == pytest.approx(5 / 4, rel=1e-5)


def test_the_noise_has_the_deviation_that_is_accounted_for():
    """z C / K = 0.6 x 5 / 4 = 0.75 in each of 40,000 entries, mean 0; versions are independent."""
    size = 40_000
    model = GlobalModel(np.zeros(size, np.float32), 0)
    updates = [Update(k, 0, np.zeros(size, np.float32), "delta", 10, 0.5) for k in range(4)]
    strategy = private(noise_multiplier=0.6)
    first, second = (strategy.aggregate(model, updates) for _ in range(2))
    for noise in (first, second):
        assert noise.std() == pytest.approx(0.75, rel=0.02)
        assert abs(noise.mean()) < 0.02
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_noise_without_a_seed_cannot_be_repeated():
    settings = {"noise_seed": None, "noise_multiplier": 1.0}
    one, other = (private(**settings).aggregate(PRIVATE_MODEL, FOUR) for _ in range(2))
    assert one.tobytes() != other.tobytes()
    assert "noise" not in private(**settings).state  # nor after a restart


def test_epsilon_by_number_of_versions():
    strategy = private(noise_multiplier=4.0)
    bound = 8 / (2 * 16) + math.sqrt(2 * 8 * math.log(1e5)) / 4
    assert bound == pytest.approx(3.643, abs=1e-3)
    # Flower's accountant converts more tightly than by hand, by some tenths.
    assert 0.8 * bound < strategy.epsilon(8) <= bound
    assert strategy.epsilon(0) == 0 < strategy.epsilon(7) < strategy.epsilon(8)


def test_totals_of_epsilon():
    strategy = private(noise_multiplier=4.0)
    assert strategy.totals()["epsilon"] == 0
    for _ in range(3):
        strategy.aggregate(PRIVATE_MODEL, FOUR)  # client 1 is twice in each
    strategy.aggregate(PRIVATE_MODEL, [arrival(2, 4, 1, 1)])
    assert strategy.totals() == {
        "epsilon": strategy.epsilon(4),
        "epsilon_of_most_frequent_client": strategy.epsilon(4),  # client 2
        "delta": 1e-5,
    }
    strategy.aggregate(PRIVATE_MODEL, [arrival(5, 4, 1, 1)])
    totals = strategy.totals()
    assert totals["epsilon"] == strategy.epsilon(5)
    assert totals["epsilon_of_most_frequent_client"] == strategy.epsilon(4)


def test_a_run_beyond_max_epsilon_is_refused():
    strategy = private(noise_multiplier=4.0, max_epsilon=3.64)
    strategy.validate_run(8, DPFedBuff.schedule)
    text = "strategy.max_epsilon=3.64 must be at least 1"
    with pytest.raises(
        ValueError, match=f"^algorithm.{re.escape(text)}.* for num_versions=80 with noise"
    ):
        strategy.validate_run(80, DPFedBuff.schedule)


def test_models_with_buffers_are_refused():
    model = GlobalModel(vec(1, 2), 0, num_trainable=1)
    with pytest.raises(RunError, match="needs a model without buffers such as BatchNorm"):
        private().aggregate(model, [arrival(0, 0, 1, 1)])
