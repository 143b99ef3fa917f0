"""Weighted averages and sums of uploads against hand-derived values.

w_t = [1, 1] at version 5; w_2 = [7, 7], w_3 = [4, 4]; n = 10 and 30. A staleness is age + 1.

AFL        eta = 2, p = n_i / n = [1/4, 3/4], gradients [2, 0], [0, 4]:
           [1 - 2 1/4 2, 1 - 2 3/4 4] = [0, -5]
SAFL       ages 0 and 5: p = [10/40 / 1, 30/40 / 6] = [1/4, 1/8], not normalised: [0, 0]
SASGD      K = 2, ages 0 and 3: p = [1 / (2 1), 1 / (2 4)]: [1 - 2 1/2 2, 1 - 2 1/8 4] = [-1, 0];
           normalised p = [1, 1/4] / (5/4): [1 - 2 0.8 2, 1 - 2 0.2 4] = [-2.2, -0.6]
TWAFL      gradients [1, 0], [0, 1] of ages 0 and 2, (e/2)^-2 = 0.5413411; normalised
           p = [0.6487856, 0.3512144]; as printed p = [10/40, 30/40 0.5413411]; [1, 1] - 2 p
DynSGD     gradients [2, 0], [0, 4] of ages 1 and 3: p = [1/2, 1/4] / (3/4), [-5/3, -5/3];
           exponent 1/2: p = [0.5857864, 0.4142136]; original p = [1 / (2 2), 1 / (2 4)]: [0, 0]
FedAvg     models [2, 0], [6, 4]: 10/40 [2, 0] + 30/40 [6, 4] = [5, 3]; and as displacements
FedBuff    eta_g = 2, displacements [2, 0], [0, 4] of ages 0 and 3: s = 1 and 4^(-1/2):
           [1, 1] + 2 1/2 ([2, 0] + 1/2 [0, 4]) = [3, 3]; constant [3, 5]. One alone of age 3:
           [1, 1] + 1/2 [0, 4]. Clipped to length 1, half of the rate left: 1 + 1/2 1/2
FedProx, MOON   the server's part: 10/40 [2, 8] + 30/40 [6, 0] = [5, 2], wherever w_t is
FedAvgK    eta = 1/2, gradients [2, 0], [0, 4]: [1, 1] - 1/2 [1, 2] = [0.5, 0]; by examples
           [1, 1] - 1/2 [1/4 2, 3/4 4] = [0.75, -0.5]; clipped to length 1 each [0.75, 0.75];
           from 1 to 0.2 over 10 versions the rate is 0.6 at version 5: 1 - 0.3 [1, 2] = [0.7, 0.4];
           a model w_i = [2, 5] from w_3: g = 2 (w_3 - w_i) = [4, -2], [1, 1] - 1/2 g
Ringmaster eta = 1/2: [1, 1] - 1/2 [2, 4]; several at once along their sum
FedAsync   alpha = 0.8, w_i = [3, -1] of age 3: s = 1, 4^(-1/2) = 1/2, 1 / (10 (3 - 1) + 1) = 1/21;
           (1 - alpha s) [1, 1] + alpha s [3, -1]
"""

import numpy as np
import pytest
from helpers import Scripted, Times, run, update_of, vec

from fl_app.algorithms.ace import ACE
from fl_app.algorithms.afl import AFL
from fl_app.algorithms.asyncfeded import AsyncFedED
from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.dynsgd import DynSGD
from fl_app.algorithms.fadas import FADAS
from fl_app.algorithms.fedasync import FedAsync
from fl_app.algorithms.fedavg import FedAvg
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.feddyn import FedDyn
from fl_app.algorithms.fedhist import FedHist
from fl_app.algorithms.fedprox import FedProx
from fl_app.algorithms.fedstaleasync import FedStaleAsync
from fl_app.algorithms.gsgm import GSGM
from fl_app.algorithms.moon import MOON
from fl_app.algorithms.mr_asyncfl import MRAsyncFL
from fl_app.algorithms.port import PORT
from fl_app.algorithms.ringmaster import Ringmaster
from fl_app.algorithms.safl import SAFL
from fl_app.algorithms.sasgd import SASGD
from fl_app.algorithms.scaffold import SCAFFOLD
from fl_app.algorithms.twafl import TWAFL
from fl_app.algorithms.wkafl import WKAFL
from fl_app.core.rates import LinearDecay
from fl_app.core.types import GlobalModel, Update, Upload
from fl_app.schedule import fully_async

MODEL = GlobalModel(vec(1, 1), 5, {2: vec(7, 7), 3: vec(4, 4)})


def uploads(*rows):
    """Updates from rows of base version, kind and vector; their rates sum to 1/2."""
    return [
        Update(client, base, vec(*vector), kind, 10 + 20 * client, 0.1, rate_sum=0.5)
        for client, (base, kind, vector) in enumerate(rows)
    ]


def gradients(first, second):
    """The gradients [2, 0] and [0, 4] from these base versions."""
    return uploads((first, "gradient", (2, 0)), (second, "gradient", (0, 4)))


TWO = uploads((5, "gradient", (1, 0)), (3, "pseudo", (0, 1)))
TWO_STEPS = uploads((4, "pseudo", (2, 0)), (2, "delta", (0, -2)))
STALE = uploads((2, "delta", (0, 4)))
HINGE = {"exponent": 0.5, "hinge_slope": 10, "hinge_age": 1}


@pytest.mark.parametrize(
    ("strategy", "updates", "expected"),
    [
        (AFL(server_lr=2), gradients(5, 0), [0, -5]),
        (SAFL(server_lr=2), gradients(5, 0), [0, 0]),
        (SASGD(server_lr=2), gradients(5, 2), [-1, 0]),
        (SASGD(server_lr=2, normalise=True), gradients(5, 2), [-2.2, -0.6]),
        (TWAFL(server_lr=2), TWO, [-0.2975712, 0.2975712]),
        (TWAFL(server_lr=2, normalise=False), TWO, [0.5, 0.1879883]),
        (DynSGD(server_lr=2), TWO_STEPS, [-5 / 3, -5 / 3]),
        (DynSGD(server_lr=2, exponent=0.5), TWO_STEPS, [-1.3431458, -2.3137085]),
        (DynSGD(server_lr=2, normalise=False), TWO_STEPS, [0, 0]),
        (FedAvg(), uploads((5, "model", (2, 0)), (5, "model", (6, 4))), [5, 3]),
        *(
            (strategy, uploads((5, "model", (2, 8)), (2, "model", (6, 0))), [5, 2])
            for strategy in (FedProx(proximal=0.5), MOON(), FedAvg())
        ),
        (FedAvgK(server_lr=0.5), gradients(3, 5), [0.5, 0]),
        (FedAvgK(server_lr=0.5, weighting="examples"), gradients(3, 5), [0.75, -0.5]),
        (FedAvgK(server_lr=0.5, clip_norm=1), gradients(3, 5), [0.75, 0.75]),
        (FedAvgK(server_lr=0.5, lr_schedule=LinearDecay(0.2, 10)), gradients(3, 5), [0.7, 0.4]),
        (FedAvgK(server_lr=0.5), uploads((3, "model", (2, 5))), [-1, 2]),
        (Ringmaster(server_lr=0.5), uploads((3, "gradient", (2, 4))), [0, -1]),
        (Ringmaster(server_lr=0.5), uploads(*[(4, "gradient", (2, 4))] * 2), [-1, -3]),
        (FedAvg(), uploads((2, "delta", (-5, -7)), (3, "delta", (2, 0))), [5, 3]),
        *(
            (FedBuff(server_lr=2, staleness_function=function), updates, expected)
            for function, expected in (("polynomial", [3, 3]), ("constant", [3, 5]))
            for kind, stale in (("delta", (0, 4)), ("model", (7, 11)), ("pseudo", (0, -8)))
            for updates in [uploads((5, "delta", (2, 0)), (2, kind, stale))]
        ),
        (FedBuff(), STALE, [1, 3]),
        (FedBuff(clip_norm=1, lr_schedule=LinearDecay(to=0, versions=10)), STALE, [1, 1.25]),
        *(
            (FedAsync(mixing=0.8, staleness_function=function, **HINGE), updates, expected)
            for function, expected in (
                ("constant", [2.6, -0.6]),
                ("polynomial", [1.8, 0.2]),
                ("hinge", [1 + 1.6 / 21, 1 - 1.6 / 21]),
            )
            for updates in [uploads((2, "model", (3, -1)))]
        ),
    ],
)
def test_the_next_model(strategy, updates, expected):
    np.testing.assert_allclose(strategy.aggregate(MODEL, updates), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "second", "expected", "weights"),
    [
        (AFL(form="model", mixing=0.5), (4, "model", [5]), 2.75, [1 / 8, 3 / 8]),
        (SAFL(form="model", mixing=0.5), (2, "delta", [5]), 2.5, [1 / 4, 1 / 4]),
        (FedAvg(), (4, "model", [5]), 4.5, [1 / 4, 3 / 4]),
    ],
)
def test_models_are_mixed_if_asked(strategy, second, expected, weights):
    """w = 1, local models 3 and 5: 1/2 + 1/2 (3/4 + 15/4); ages 0 and 2: 1/2 + 1/2 (3 + 5) / 2."""
    model = GlobalModel(vec(1), 4, {2: vec(0)})
    params = strategy.aggregate(model, uploads((4, "delta", [2]), second))
    np.testing.assert_allclose(params, [expected])
    assert strategy.report["weight"] == pytest.approx(weights)


def test_bounds_of_staleness():
    """FedBuff has no hinge; FedAsync's is flat up to its age; age 3 is a staleness of 4."""
    with pytest.raises(ValueError, match="must be polynomial or constant"):
        FedBuff(staleness_function="hinge")
    strategy = FedAsync(mixing=0.5, staleness_function="hinge", hinge_slope=10, hinge_age=4)
    assert [strategy.weight(age) for age in (0, 4)] == [0.5, 0.5]
    assert strategy.weight(5) == pytest.approx(0.5 / 11)


def test_several_updates_are_mixed_one_after_the_other():
    """Weights 1/2, w = [0]: 1/2 4 = 2, then 1/2 2 + 1/2 8 = 5, which is 1/4 4 + 1/2 8."""
    strategy = FedAsync(mixing=0.5)
    updates = uploads((5, "model", [4]), (5, "model", [8]))
    assert strategy.aggregate(GlobalModel(vec(0), 5), updates).tolist() == [5]
    assert strategy.report["weight"] == [0.25, 0.5]


@pytest.mark.parametrize(
    ("first", "second", "clients"),
    [
        ((2, 0), (0, 2), 2),  # length 2 against sqrt(2)
        ((2, 0), (2, 0), 1),
        ((3, 0), (0, 1), 1.6),  # (2 / sqrt(2.5))^2
        ((2, 0), (-2, 0), None),
    ],
)
def test_effective_clients(first, second, clients):
    """(mean length / length of the mean)^2, of the trainable entries."""
    strategy = FedAvgK()
    strategy.aggregate(MODEL, uploads((5, "gradient", first), (5, "gradient", second)))
    assert strategy.report["effective_clients"] == (clients and pytest.approx(clients))
    model = GlobalModel(vec(1, 1, 1), 5, num_trainable=2)
    rows = [(5, "gradient", (*first, 9)), (5, "gradient", (*second, 0))]
    strategy.aggregate(model, uploads(*rows))
    assert strategy.report["effective_clients"] == (clients and pytest.approx(clients))
    strategy.describe([0.5, 0.5], [np.inf, 1.0], np.inf)  # of gradients that overflow
    assert strategy.report["effective_clients"] is None


# -- Ringmaster -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "key"),
    [
        (Ringmaster(server_lr=0.5, delay_threshold=3), "delay_threshold"),
        (FedAsync(max_staleness=3), "max_staleness"),
        (MRAsyncFL(max_staleness=2), "max_staleness"),
    ],
)
def test_young_uploads_are_taken_and_old_ones_refused(strategy, key):
    assert strategy.admit(MODEL, update_of(0, 3, 2, 4)) is None
    for age in (3, 4):
        reason = f"age={age} is above 2, by strategy.{key}"
        assert strategy.admit(MODEL, update_of(0, 5 - age, 2, 4)) == reason


@pytest.mark.parametrize(
    ("noise", "target", "threshold"), [(10.0, 4.0, 3), (8.0, 4.0, 2), (0.0, 1.0, 1)]
)
def test_the_threshold_follows_from_noise_and_target(noise, target, threshold):
    strategy = Ringmaster(delay_threshold=None, noise=noise, target=target)
    assert strategy.threshold == threshold


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delay_threshold": None}, "None must be an integer"),
        ({"delay_threshold": None, "noise": 1.0}, "None must be an integer"),
        ({"delay_threshold": None, "target": 1.0}, "None must be an integer"),
        ({"noise": 1.0}, "50 must be null with"),
        ({"target": 1.0}, "50 must be null with"),
    ],
)
def test_a_threshold_is_given_or_follows(settings, message):
    with pytest.raises(ValueError, match=rf"^algorithm\.strategy\.delay_threshold={message}"):
        Ringmaster(**settings)


def test_a_slow_client_starts_again_and_its_gradients_are_never_used():
    """Client 3 takes ten times as long as three others: its gradients are 27 versions old."""
    result = run(
        fully_async(4),
        Scripted(lambda client, number, received: Upload(vec(1, 1), "gradient", 1, loss=0.0)),
        num_clients=4,
        num_versions=100,
        devices=Times(lambda client, number: 10.0 if client == 3 else 1.0 + 0.01 * client),
        strategy=Ringmaster(delay_threshold=20),
    )
    assert {event["client"] for event in result.kind("reject")} == {3}
    assert all(client != 3 for event in result.kind("aggregate") for client in event["client"])
    assert len([e for e in result.kind("dispatch") if e["client"] == 3]) > 2


# -- clips and buffers of several algorithms -------------------------------------------------------


@pytest.mark.parametrize("make", [ACE, AsyncFedED, CA2FL, CANA, FADAS, FedAvgK, FedStaleAsync])
def test_a_long_upload_acts_as_one_clipped_to_the_bound(make):
    """Clipped to 1, 3 and 4 act as 0.6 and 0.8."""
    kind = "delta" if make in (AsyncFedED, FADAS) else "pseudo"
    model = GlobalModel(vec(5, 5), 3, {2: vec(0, 0)})

    def models(upload, **settings):
        strategy = make(**settings)
        both = (upload, vec(-0.3, 0.4))  # FADAS' first step always has the same length
        return [strategy.aggregate(model, [update_of(0, 2, *each, kind=kind)]) for each in both]

    clipped = models(vec(3, 4), clip_norm=1.0)
    np.testing.assert_allclose(clipped, models(vec(0.6, 0.8)), rtol=1e-6)
    assert not np.allclose(clipped, models(vec(3, 4)))


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        (ACE(), "pseudo"),
        (CA2FL(num_clients=9, clip_norm=0.1), "pseudo"),
        (CANA(clip_norm=0.1), "pseudo"),
        (FADAS(), "delta"),
        (FedAvgK(server_lr=0.5, clip_norm=0.1), "pseudo"),
        (FedDyn(), "model"),
        (FedHist(egs=True, ina=True, buffer_length=1, fusion=1.0), "pseudo"),
        (FedStaleAsync(num_clients=9, clip_norm=0.1), "pseudo"),
        (GSGM(momentum=0.5), "gradient"),
        (PORT(staleness_weight=0.0), "delta"),
        (SCAFFOLD(server_lr=0.5), "delta"),
        (WKAFL(momentum=0.5, clip_norm=0.1, min_similarity=-1), "gradient"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_buffers_move_by_the_mean_of_the_uploads_and_nothing_else(strategy, kind):
    """By 2, the mean of 4 and 0, in both versions: without rate, clip, momentum or memory."""
    model = GlobalModel(vec(1, 0), 1, {0: vec(0, 0)}, num_trainable=1)
    toward = 1 if kind in ("delta", "model") else -1
    for _ in range(2):
        extra = {"control": vec(1, 0)}
        updates = [update_of(c, 1, 1, 4 * c, kind=kind, extra=extra) for c in range(2)]
        assert strategy.aggregate(model, updates)[1] == pytest.approx(2 * toward, rel=1e-6)


def test_buffers_take_a_stale_upload_like_a_fresh_one():
    model = GlobalModel(vec(0, 0), 3, num_trainable=1)
    for base in (0, 3):
        assert FedStaleAsync(num_clients=2).aggregate(model, [update_of(0, base, 4, 4)])[1] == -4
