"""Gradients that the server remembers, against hand-derived values; eta = 1, w = 0 each time.

ACE and ACED (Chang et al. 2025), N = 4:

version t   client: gradient, base version    ACE: mean of all heard      ACED, max_age = 2
0           0: [4, 0], 0                      [4, 0]                      [4, 0]
1           1: [0, 8], 1                      [4, 8] / 2 = [2, 4]         [2, 4]
2           0: [2, 0], 2                      [2, 8] / 2 = [1, 4]         [1, 4]
4           2: [6, 6], 1 (age 3)              [8, 14] / 3                 only 0 counts: [2, 0]
5           3: [1, 1], 2 (age 3)              [9, 15] / 4                 nobody: refused
5           1: [0, 4], 5                      [9, 11] / 4                 only 1 counts: [0, 4]

CA2FL and FedStale (Wang et al. 2024; Rodio, Neglia 2024), N = 3, K = 2:

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

CANA, p = 1, rho = 1/10, N = 3, K = 2:

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
        hbar = [2, .5], gbar = [1, 1]: 3 / 2.5 is clipped to 1, beta = .9 1/2 + .1
        v = [1, 1] - .55 [2, .5] + .55 H = [1.0177419, 1.3104839]

memory_span = 1, A = 1.5, counted from the version that a memory was computed on:
    t = 3: both memories are too old: v = [5/3, 2/3]
    t = 4: only h_0 counts, beta = 1/2: v = [1, 1] - 1/4 [1, 1] + 1/4 [1, 1]
A memory of exactly the age A counts: h_0 at t = 4 with A = 1.
With a fixed beta = 1 at t = 1: [13/3, 7/3] - [8/3, 2/3] + [2, 1] = [11/3, 8/3].

FedStaleAsync, N = 4, K = 2, a = b = 1, rho = 1/2:

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

Clients that are late on average count more, K = 2; client 0: [6, 0], client 1: [0, 6]; ages

    1   0: 0    1: 1
    2   0: 2    1: 4
    3   0: 3    0: 0, both of client 0

FedStaleWeight (Ma et al. 2024), rho = 1/2: E = 0, 1; 1, 2.5; 2, then 1.
    E K + 1 = 1, 3; 3, 6; 3, 3: p = [1/4, 3/4], [1/3, 2/3], [1/2, 1/2]
    as printed, E + 1: p = [1/3, 2/3], [4/11, 7/11], [1/2, 1/2]
CANA with fair=True, weights with p = 1, and with p = 0, which leaves the first factor:
    T / n = 1/2   E = 1/4, 3/4   m = 1.5 (1/1.25)^-1, 2.5 (2/1.75)^-1 = 1.875, 2.1875
            7/4   E = 5/4, 9/4   m = 3.5 (3/2.25)^-1, 5.5 (5/3.25)^-1 = 2.625, 3.575
            5/3   E = 4/3: both of client 0; the older one has a quarter of the other's
"""

import numpy as np
import pytest
from helpers import Quadratic, order_for, run, same_steps, steps, update_of, vec

from fl_app.algorithms.ace import ACE
from fl_app.algorithms.area import AREA
from fl_app.algorithms.area.trainer import AREATrainer
from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.fedstaleasync import FedStaleAsync
from fl_app.algorithms.fedstaleweight import FedStaleWeight
from fl_app.client.build import chain
from fl_app.core.types import RESIDUAL, GlobalModel, Update
from fl_app.engine.checks import require_keepable
from fl_app.engine.guard import Guard
from fl_app.schedule import Buffered

HEARD = [(0, (0, [4, 0], 0)), (1, (1, [0, 8], 1)), (2, (0, [2, 0], 2))]
HEARD += [(4, (2, [6, 6], 1)), (5, (3, [1, 1], 2)), (5, (1, [0, 4], 5))]
ALL = [[4, 0], [2, 4], [1, 4], [8 / 3, 14 / 3], [9 / 4, 15 / 4], [9 / 4, 11 / 4]]
YOUNG = [[4, 0], [2, 4], [1, 4], [2, 0], None, [0, 4]]
KEPT = [
    (0, (0, [2, 0], 0), (1, [0, 4], 0)),
    (1, (0, [4, 0], 0), (0, [6, 2], 0)),
    (2, (0, [6, 2], 0), (2, [3, 3], 0)),
]
MEASURED = [
    (0, (0, [4, 0], 0), (1, [0, 2], 0)),
    (1, (0, [5, 2], 1), (1, [3, 3], 0)),
    (3, (0, [1, 1], 3), (2, [3, 0], 2)),
    (4, (0, [0, 2], 4), (2, [2, 0], 4)),
]
STALE = [
    (1, (0, [4, 0], 1), (1, [0, 6], 0)),
    (3, (0, [8, 0], 3), (2, [0, 4], 3)),
    (4, (1, [0, 2], 4), (0, [0, 0], 4)),
]
LATE = [
    (9, (0, [6, 0], 9), (1, [0, 6], 8)),
    (9, (0, [6, 0], 7), (1, [0, 6], 5)),
    (9, (0, [6, 0], 6), (0, [0, 6], 9)),
]


def cana(**settings):
    defaults = {"exponent": 1.0, "memory_span": None, "num_clients": 3}
    return CANA(**(defaults | settings))


def shares(*firsts):
    return [[6 * share, 6 * (1 - share)] for share in firsts]


@pytest.mark.parametrize(
    ("strategy", "script", "expected"),
    [
        (ACE(num_clients=4), HEARD, ALL),
        (ACE(num_clients=4, max_age=100), HEARD, ALL),
        (ACE(num_clients=4, max_age=2), HEARD, YOUNG),
        (ACE(num_clients=4, over="all"), HEARD[:2], [[1, 0], [1, 2]]),
        (CA2FL(num_clients=3), KEPT, [[1, 2], [11 / 3, 7 / 3], [3.5, 3.5]]),
        (CA2FL(num_clients=3, over="heard"), KEPT, [[1, 2], [4, 3], [4.5, 4.5]]),
        (CA2FL(num_clients=3, calibration=0.5), KEPT, [[1, 2], [13 / 3, 5 / 3], [4, 3]]),
        (CA2FL(num_clients=3, calibration=0.0), KEPT, [[1, 2], [5, 1], [4.5, 2.5]]),
        (CA2FL(num_clients=3, memory_dtype="float16"), KEPT, [[1, 2], [11 / 3, 7 / 3], [3.5, 3.5]]),
        (cana(calibration=1.0), MEASURED[:2], [[2, 1], [11 / 3, 8 / 3]]),
        (
            FedStaleAsync(
                upload_exponent=1.0, memory_exponent=1.0, participation_rate=0.5, num_clients=4
            ),
            STALE,
            [[2, 1.5], [23 / 9, 35 / 8], [-1 / 7, 3.7 / 3]],
        ),
        (FedStaleWeight(rate=0.5), LATE, shares(1 / 4, 1 / 3, 1 / 2)),
        (FedStaleWeight(rate=0.5, scale_by_buffer=False), LATE, shares(1 / 3, 4 / 11, 1 / 2)),
        (cana(calibration=0.0, fair=True), LATE, shares(6 / 13, 105 / 248, 1 / 5)),
        (cana(exponent=0, calibration=0.0, fair=True), LATE, shares(3 / 8, 7 / 18, 1 / 2)),
    ],
)
def test_the_steps_of_a_script(strategy, script, expected):
    same_steps(steps(strategy, script), expected)


@pytest.mark.parametrize(
    ("settings", "later", "beta", "matched"),
    [
        ({}, [[29 / 21, 17 / 21], [1.0177419, 1.3104839]], 0.55, 2),
        ({"memory_dtype": "float16"}, [[29 / 21, 17 / 21], [1.0177419, 1.3104839]], 0.55, 2),
        ({"memory_span": 1.0}, [[5 / 3, 2 / 3], [1, 1]], 0.5, 1),
        ({"memory_span": 2 / 3}, [[5 / 3, 2 / 3], [1, 1]], 0.5, 1),
    ],
)
def test_memories_calibrate_as_far_as_they_help(settings, later, beta, matched):
    """The gradients here are exact in float16."""
    strategy = cana(**settings)
    same_steps(steps(strategy, MEASURED), [[2, 1], [4, 2.5], *later])
    assert strategy.report["calibration"] == pytest.approx(beta)
    assert strategy.report["matched"] == matched


# -- ACE ------------------------------------------------------------------------------------------


def test_an_arrival_of_the_greatest_age_is_accepted_and_an_older_one_has_no_weight():
    strategy, model = ACE(max_age=1, over="all", num_clients=2), GlobalModel(vec(0), 3)
    assert strategy.admit(model, update_of(0, 2, 4)) is None
    assert strategy.aggregate(model, [update_of(0, 2, 4)]).tolist() == [-2]
    assert strategy.report["weight"] == [1 / 2]
    assert "effective_clients" not in strategy.report  # the mean is over memories
    strategy.aggregate(model, [update_of(1, 0, 9)])
    assert strategy.report["weight"] == [0]
    reason = "age=3 is above strategy.max_age=1, and no client has a younger gradient"
    assert strategy.admit(GlobalModel(vec(0), 6), update_of(3, 3, 1)) == reason
    # If no update has a weight, the version repeats its predecessor.
    assert ACE(max_age=1).aggregate(GlobalModel(vec(5), 9), [update_of(0, 0, 8)]).tolist() == [5]


def test_of_two_updates_of_a_client_the_later_one_counts():
    strategy = ACE()
    same_steps(steps(strategy, [(0, (0, [8], 0), (0, [2], 0), (1, [4], 0))]), [[3]])
    assert strategy.report["weight"] == [0, 0.5, 0.5]


# -- CA2FL and FedStaleAsync ----------------------------------------------------------------------


def test_memories_are_clipped_gradients():
    """[0, 10] to length 2: v = [0, 2]; then g = h, so v = (1/2) [0, 2] of two clients."""
    script = [(0, (0, [0, 10], 0))] * 2
    same_steps(steps(CA2FL(num_clients=2, clip_norm=2), script), [[0, 2], [0, 1]])


def test_small_gradients_do_not_vanish_in_float16():
    """1e-9 is 0 in float16 without a scale; N = 2: v = 1e-9 / 2 + 3e-9 - 1e-9."""
    strategy = CA2FL(num_clients=2, memory_dtype="float16")
    result = steps(strategy, [(0, (0, [1e-9], 0)), (0, (0, [3e-9], 0))])
    assert result[1] == pytest.approx([2.5e-9], rel=1e-3)


def test_a_participation_that_is_not_estimated_is_that_of_the_aggregation():
    """K / N = 1/2: (1/2) 4 / (1/2). Then K / N = 1: (1/2) (4 + [4 - 4] + 4).

    Estimated with rho = 1, client 0 has p = 1 and others 0, so client 1 has a tenth of the mean.
    """
    plain = {"num_clients": 2, "upload_exponent": 0.0, "memory_exponent": 0.0}
    script = [(0, (0, [4], 0)), (0, (0, [4], 0), (1, [4], 0))]
    same_steps(steps(FedStaleAsync(participation_rate=0.0, **plain), script), [[4], [4]])
    estimated = FedStaleAsync(upload_exponent=0.0, participation_rate=1.0, num_clients=2)
    result = steps(estimated, [(0, (0, [1, 0], 0)), (0, (1, [0, 1], 0))])
    assert result[1] == pytest.approx([1 / 2, 1 / 2 / 0.05], rel=1e-6)


# -- CANA -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [1.95, 1.51])
def test_equal_memories_measure_nothing_where_their_mean_is_rounded(same):
    """Three equal rows less their mean are not zero in float32."""
    strategy = cana()
    for rows in ([[same, 2.68]] * 3, [[2.6, -0.9], [0.4, -1.1], [0.6, -1.0]]):
        steps(strategy, [(0, *((client, row, 0) for client, row in enumerate(rows)))])
    assert strategy.state["measured"] is None
    assert strategy.report["matched"] == 3


def test_gradients_against_their_memories_are_not_calibrated():
    """b^ = -1 is clipped to 0."""
    strategy = cana()
    script = [(0, (0, [sign], 0), (1, [2 * sign], 0)) for sign in (1, -1)]
    same_steps(steps(strategy, script), [[1.5], [-1.5]])
    assert strategy.report["calibration"] == 0


def test_both_uploads_of_a_client_are_compared_with_its_earlier_memory():
    """p = 0, beta = 1, h_0 = [4]: v = 3 - 4 + 4 = 3; then the later one, [1], is remembered."""
    strategy = cana(exponent=0.0, calibration=1.0)
    script = [(0, (0, [4], 0)), (0, (0, [5], 0), (0, [1], 0))]
    same_steps(steps(strategy, script), [[4], [3]])
    assert strategy.memory.row(0).tolist() == [1]


def test_past_steps_are_fused():
    """L = 1, alpha = 1/2: [1, 0]; [0, 1] + [.5, 0]; [-1, 0] + 1/2 [.5, 1] = [-.75, .5].

    What is fused is calibrated: v_0 = 3, h = 4 and 2, H = 3: 6 + 3/2 - 4 + 3, which is kept, too.
    """
    fused = {"fusion": 0.5, "fusion_length": 1}
    script = [(t, (0, g, t)) for t, g in enumerate(([1, 0], [0, 1], [-1, 0]))]
    expected = [[1, 0], [0.5, 1], [-0.75, 0.5]]
    same_steps(steps(cana(calibration=0.0, **fused), script), expected)
    strategy = cana(calibration=1.0, exponent=0.0, num_clients=2, **fused)
    same_steps(steps(strategy, [(0, (0, [4], 0), (1, [2], 0)), (1, (0, [6], 1))]), [[3], [6.5]])
    assert strategy.state["past"].tolist() == [[6.5]]


@pytest.mark.parametrize(("num_clients", "factor"), [(2, 1), (4, 0.5)])
def test_fusion_falls_with_the_number_of_clients(num_clients, factor):
    """L = 2, K = 1, alpha = 1/2: min(1, 2 / N). Steps [1, 0] and [0, 1], then [-2, 0]."""
    falls = {"fusion": 0.5, "fusion_length": 2, "fusion_falls": True}
    strategy = cana(calibration=0.0, num_clients=num_clients, **falls)
    result = steps(strategy, [(0, (0, g, 0)) for g in ([1, 0], [0, 1], [-2, 0])])
    assert result[2] == pytest.approx([-2 + 0.5 * factor, 0])


def test_steps_are_as_long_as_gradients():
    """p = 0: v = [3/2, 2] of length 5/2, mean length 7/2: [2.1, 2.8]. Past steps keep theirs."""
    strategy = cana(exponent=0.0, normalise=True, fusion=0.5, fusion_length=1)
    same_steps(steps(strategy, [(0, (0, [3, 0], 0), (1, [0, 4], 0))]), [[2.1, 2.8]])
    assert strategy.state["past"].tolist() == [[1.5, 2]]


# -- AREA ------------------------------------------------------------------------------------------

# AREA against hand-derived values (Iakovidou, Kim 2024), N = 4, K = 1, w_0 = 0.
#
# client  received   w_end   y_c before   upload          w = mean of y, clients 2 and 3 at 0
# 0       w_0 = 0    4       0            4               4 / 4 = 1
# 1       w_1 = 1    3       (begins)     3 - 1 = 2       1 + (2 + (1 - 0)) / 4 = 7/4
# 0       w_1 = 1    2       4            -2              7/4 - 2/4 = 5/4
# 1       w_3 = 5/4  0       3            -3              5/4 - 3/4 = 1/2


def residual(client, version, r, after=0, number=1):
    metrics = {"after": float(after), "upload": float(number)}
    return update_of(client, version, r, kind=RESIDUAL, metrics=metrics)


FOUR = [residual(0, 0, 4), residual(1, 1, 2), residual(0, 1, -2, 1, 2), residual(1, 3, -3, 1, 2)]


def test_the_model_is_the_mean_of_the_latest_models():
    strategy, history = AREA(num_clients=4), {0: vec(0)}
    for version, (each, expected) in enumerate(zip(FOUR, [1, 7 / 4, 5 / 4, 1 / 2], strict=True)):
        model = GlobalModel(history[version], version, dict(history))
        assert strategy.admit(model, each) is None
        history[version + 1] = strategy.aggregate(model, [each])
        np.testing.assert_allclose(history[version + 1], [expected])
        assert strategy.report["weight"] == [1 / 4]


def test_orders_say_after_which_upload_the_next_one_counts():
    strategy, model = AREA(num_clients=1), GlobalModel(vec(0), 0)

    def numbers():
        config = strategy.dispatch(model, 0)[1]
        return [config[key] for key in ("after", "checkpoint", "checkpoint_before")]

    require_keepable(strategy, Buffered(1, 1))  # this saves nothing
    assert numbers() == [0, 0, 0]
    strategy.admit(model, residual(0, 0, 4, 0, 3))
    assert numbers() == [3, 3, 3]
    strategy.state_dict()
    strategy.admit(model, residual(0, 0, 4, 3, 4))
    assert numbers() == [4, 3, 3]
    strategy.state_dict()
    strategy.admit(model, residual(0, 0, 4, 4, 5))
    assert numbers() == [5, 4, 3]
    strategy.state_dict()
    assert numbers() == [5, 5, 4]


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (residual(0, 0, 1, 7, 8), "it follows upload 7 of its client, and the last one was"),
        (residual(0, 0, 1, 0, float("nan")), "it says that it is upload nan of its client"),
        (residual(0, 0, 1, 0, float("inf")), "it says that it is upload inf of its client"),
        (residual(0, 0, 1, 0, 0), "it says that it is upload 0 of its client, and the last was 0"),
        (residual(5, 0, 1), "strategy.num_clients=1 other clients have uploaded"),
        (Update(0, 0, vec(1), "delta", 10, 0.1), "kind 'delta' is not 'residual'"),
    ],
)
def test_uploads_that_do_not_fit_the_mean_are_refused(update, reason):
    strategy, model = AREA(num_clients=1), GlobalModel(vec(0), 0)
    if update.client_id == 5:
        strategy.admit(model, residual(0, 0, 1))
    before = dict(strategy.state["accepted"])
    assert reason in (strategy.admit(model, update) or "")
    assert strategy.state["accepted"] == before


def test_norm_bounds_are_refused_before_a_run():
    message = r"^guard\.max_norm=9\.0 must be null with uploads of kind 'residual'"
    with pytest.raises(ValueError, match=message):
        AREA().start(None, None, guard=Guard(max_norm=9.0))


# -- the device -----------------------------------------------------------------------------------

TASK = Quadratic.scattered(4)


def trainer(**settings):
    return AREATrainer(TASK, upload="delta", local_steps=3, local_lr=0.1, **settings)


def train(device, sequence, received, state, **config):
    return device.train(order_for(1, sequence, received, {"version": 0, **config}, state))


def test_a_client_uploads_the_change_since_the_upload_that_the_order_names():
    device, w = trainer(), vec(1, 2, 3)
    first = train(device, 0, w, {}, after=0)
    end = device.model.read()
    np.testing.assert_allclose(first.vector, end - w, atol=1e-6)
    assert first.kind == RESIDUAL
    assert first.metrics == {"after": 0, "upload": 1}
    second = train(device, 1, vec(0, 0, 0), first.state, after=1, checkpoint=1)
    np.testing.assert_allclose(second.vector, device.model.read() - end, atol=1e-6)
    assert second.state["numbers"].tolist() == [1, 2]
    # The second upload was refused, so the third follows the first.
    third = train(device, 2, vec(5, 5, 5), second.state, after=1, checkpoint=1)
    np.testing.assert_allclose(third.vector, device.model.read() - end, atol=1e-6)
    assert third.state["numbers"].tolist() == [1, 3]
    fourth = train(device, 3, w, third.state, after=3, checkpoint=3)
    assert fourth.state["numbers"].tolist() == [3, 4]


def test_a_client_keeps_the_models_that_the_last_two_checkpoints_name():
    device, state = trainer(), {}
    for sequence in range(6):
        config = {"checkpoint": min(sequence, 3), "checkpoint_before": min(sequence, 1)}
        state = train(device, sequence, vec(1, 2, 3), state, after=sequence, **config).state
    assert state["numbers"].tolist() == [1, 3, 5, 6]


def test_a_client_reports_a_lost_memory():
    device = trainer()
    with pytest.raises(ValueError, match=r"^client 1 has no model of its upload 4: its memory was"):
        train(device, 5, vec(1, 2, 3), {}, after=4)


def test_rounding_errors_are_part_of_the_next_upload():
    """y moves by the vector that was sent, so that the server's sum stays equal to y."""
    device, received = trainer(upload_dtype="float16"), vec(1, 2, 3)
    first = chain(device).train(order_for(1, 0, received, {"after": 0}))
    assert first.vector.tolist() != (device.model.read() - received).tolist()
    y = received + first.vector
    order = order_for(1, 1, received, {"after": 1}, first.state)
    second = chain(device).train(order)
    exact = device.model.read() - y
    np.testing.assert_allclose(second.vector, exact, rtol=1e-3, atol=1e-6)


def test_other_uploads_are_refused():
    with pytest.raises(ValueError, match=r"^algorithm\.client\.upload=model must be delta"):
        AREATrainer(TASK, upload="model")


# -- in runs --------------------------------------------------------------------------------------

CLIENTS = 8


class Recording(AREATrainer):
    """Records the model at each upload."""

    def __init__(self):
        super().__init__(Quadratic.scattered(CLIENTS), upload="delta", local_steps=2, local_lr=0.1)
        self.ends = {}

    def train(self, order):
        upload = super().train(order)
        self.ends[order.client_id, int(upload.metrics["upload"])] = self.model.read()
        return upload


class Checked(AREA):
    """Refuses every fifth arrival, and compares each version with the mean of the latest models."""

    def __init__(self, ends):
        super().__init__(num_clients=CLIENTS)
        self.ends, self.arrivals, self.latest = ends, 0, {}

    def admit(self, model, update):
        self.arrivals += 1
        return super().admit(model, update) if self.arrivals % 5 else "every fifth"

    def aggregate(self, model, updates):
        params = super().aggregate(model, updates)
        self.latest |= {u.client_id: int(u.metrics["upload"]) for u in updates}
        sum_of_ends = sum(self.ends[key] for key in self.latest.items())
        mean = (sum_of_ends + (CLIENTS - len(self.latest)) * self.state["first"]) / CLIENTS
        np.testing.assert_allclose(params, mean, atol=1e-5)
        return params


def test_refused_and_waiting_uploads_leave_the_model_the_mean():
    device, buffered = Recording(), Buffered(concurrency=6, buffer_size=3)
    settings = {"num_clients": CLIENTS, "num_versions": 40, "initial": vec(1, -1, 1)}
    result = run(buffered, device, strategy=Checked(device.ends), **settings)
    assert result.outcome.stopped == "num_versions"
    buffers = [event["client"] for event in result.kind("aggregate")]
    assert any(len(set(clients)) < len(clients) for clients in buffers)
    assert result.history.rejected > 10
    assert len({client for clients in buffers for client in clients}) == CLIENTS
