"""Methods of 2024 to 2026 against hand-derived values.

MR.AsyncFL, gamma = 1/2, N = 2, w_0 = 4, so v = 4, 4 and c = 1/2, 1/2:

    client 0: 8     2 + 4 + 1/4 (8 - 4) = 7         c = 3/4, 1/4         = 3/4 8 + 1/4 4
    client 1: 0     7/2 + 0 + 1/8 (0 - 4) = 3       c = 3/8, 5/8         = 3/8 8
    client 0: 16    3/2 + 8 + 3/16 (16 - 8) = 11    c = 11/16, 5/16      = 11/16 16
    client 2: 1     11/2 + 1/2 = 6                  c = 11/32, 5/32, 1/2; it is beyond N

If N is not given, c is 0 at first: 6; 3; 3/2 + 8 + 1/8 (16 - 8) = 21/2; 23/4.

FedPSA (Lu 2026), w_t = [1, 1], g = [1, 1] everywhere: s(w) = |w - w^2 / 2|, s(w_t) = [1/2, 1/2].

    Delta = [1, 0]      w = [2, 1]      s = [0, 1/2]        kappa = 1 / sqrt 2
    Delta = [-2, -2]    w = [-1, -1]    s = [3/2, 3/2]      kappa = 1

    L = 2, gamma = 1, delta = 1/2: M = (1 + 8) / 2 = M_0, T = 3/2, p = [0.4513390, 0.5486610]
    w = [1 + 0.4513390 - 1.0973220, 1 - 1.0973220] = [0.3540170, -0.0973220]
    then [1, 0] and [0, 1], of equal kappa: M = 1, T = 2/9 + 1/2, w = [3/2, 3/2]

FedQS (Li et al. 2025), K = 2; client 0 reports 60 degrees, client 1 120 and asks for feedback, and
has twice as many examples:

    thetabar = 90, u_i / u = 1/2: p_1 / p_0 = 2 (e/2)^(phi - 1/2) (1 + (4/3)^2)
    phi = 1/2: 50/9, so 9/59 and 50/59.   phi = 0: 50/9 0.8577639 = 4.7653550
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from helpers import (
    Quadratic,
    Scripted,
    Times,
    order_for,
    run,
    same_steps,
    steps,
    toward_own_number,
    update_of,
    vec,
)
from torch import nn

from fl_app.algorithms.ace import ACE
from fl_app.algorithms.fedavg import FedAvg
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.fedcompass import FedCompass
from fl_app.algorithms.fedpsa import FedPSA
from fl_app.algorithms.fedqs import FedQS
from fl_app.algorithms.fedqs.trainer import FedQSTrainer
from fl_app.algorithms.fedqueue import FedQueue
from fl_app.algorithms.mr_asyncfl import MRAsyncFL
from fl_app.algorithms.rescaled_asgd import RescaledASGD
from fl_app.algorithms.ringleader import Ringleader
from fl_app.core.errors import RunError
from fl_app.core.pool import ClientPool
from fl_app.core.snapshot import dumps, loads
from fl_app.core.types import GlobalModel, Parts
from fl_app.schedule.compass import Compass
from fl_app.schedule.guided import Guided, outliers
from fl_app.schedule.queue_aware import QueueAware
from fl_app.schedule.two_phase import TwoPhase
from fl_app.tasks.task import Task

# -- MR.AsyncFL -----------------------------------------------------------------------------------

MODELS = [(0, 8), (1, 0), (0, 16), (2, 1)]


def models_after(strategy, models=MODELS, together=False):
    """w after each arrival, or after all of them at once."""
    updates = [update_of(client, 0, w, kind="model") for client, w in models]
    params, results = vec(4), []
    for version, group in enumerate([updates] if together else [[each] for each in updates]):
        params = strategy.aggregate(GlobalModel(params, version), group)
        results.append(params.item())
    return results


def test_a_new_model_takes_the_place_of_its_clients_last_one():
    assert models_after(MRAsyncFL(discount=0.5, num_clients=2)) == [7, 3, 11, 6]
    assert models_after(MRAsyncFL(discount=0.5)) == [6, 3, 10.5, 5.75]
    strategy = MRAsyncFL(discount=0.5, num_clients=2)
    assert models_after(strategy, together=True) == [6]
    assert strategy.report["weight"] == [3 / 4, 5 / 8, 11 / 16, 1 / 2]
    assert strategy.state["weights"] == {0: 11 / 32, 1: 5 / 32, 2: 1 / 2}


# -- FedPSA ---------------------------------------------------------------------------------------


def psa(**settings):
    """FedPSA for a model of [1, 1] and a buffer of 5, whose gradient does not count."""
    defaults = {"queue_length": 2, "sketch_size": None, "temperature_slope": 1.0}
    strategy = FedPSA(**(defaults | settings))
    strategy.prepare(lambda params, *rest: vec(1, 1, -9))
    return strategy


def displacements(*deltas):
    return [update_of(client, 3, *delta, 0, kind="delta") for client, delta in enumerate(deltas)]


MODEL = GlobalModel(vec(1, 1, 5), 3, num_trainable=2)
UNLIKE, ALIKE = displacements([1, 0], [-2, -2]), displacements([1, 0], [0, 1])


def test_updates_whose_models_are_as_sensitive_as_the_global_one_count_more():
    strategy = psa()
    params = strategy.aggregate(MODEL, UNLIKE)
    assert params == pytest.approx([0.3540170, -0.0973220, 5], abs=1e-6)
    assert strategy.report["temperature"] == 1.5
    # A sketch of many random rows measures the same cosines; one of few rows does not.
    assert psa(sketch_size=9999).aggregate(MODEL, UNLIKE) == pytest.approx(params, abs=0.01)
    assert psa(sketch_size=2).aggregate(MODEL, UNLIKE) != pytest.approx(params, abs=0.01)
    assert strategy.aggregate(MODEL, ALIKE) == pytest.approx([1.5, 1.5, 5])
    assert strategy.report["temperature"] == pytest.approx(2 / 9 + 1 / 2)


def test_fedpsa_is_fedbuff_until_it_knows_how_long_updates_are():
    plain = FedBuff(staleness_function="constant").aggregate(MODEL, UNLIKE)
    assert psa(queue_length=3).aggregate(MODEL, UNLIKE).tolist() == plain.tolist()
    with pytest.raises(RunError, match="needs training examples on the server"):
        FedPSA().aggregate(MODEL, UNLIKE)


# -- FedQS: the server ----------------------------------------------------------------------------


def report(client, *delta, angle, feedback, examples=10):
    metrics = {"angle": float(angle), "feedback": float(feedback)}
    return update_of(client, 3, *delta, kind="delta", metrics=metrics, examples=examples)


PAIR = {0: {"angle": 60, "feedback": 0}, 1: {"angle": 120, "feedback": 1, "examples": 20}}


@pytest.mark.parametrize(("phi", "second"), [(0.5, 50 / 9), (0.0, 4.7653550)])
@pytest.mark.parametrize(("form", "start"), [("gradient", [7, 8]), ("model", [1, 1])])
def test_clients_that_ask_for_feedback_count_more(phi, second, form, start):
    """w_t = [7, 8], w_o = [1, 1]: in the model form the mean starts from w_o."""
    model = GlobalModel(vec(7, 8), 4, {3: vec(1, 1)})
    pair = [report(k, 59 * (1 - k), 59 * k, **each) for k, each in PAIR.items()]
    params = FedQS(expected_share=phi, form=form).aggregate(model, pair)
    step = [59 / (1 + second), 59 * second / (1 + second)]
    assert params == pytest.approx(np.add(start, step))


def test_without_feedback_fedqs_is_the_plain_mean():
    model, strategy = GlobalModel(vec(0, 0), 3), FedQS()
    quiet = [report(0, 4, 0, angle=30, feedback=0)]
    quiet += [report(1, 0, 2, angle=angle, feedback=1) for angle in (np.nan, 181)]
    plain = FedBuff(staleness_function="constant").aggregate(model, quiet)
    assert strategy.aggregate(model, quiet).tolist() == plain.tolist()
    assert strategy.state["angles"] == {0: 30}  # invalid angles are ignored
    strategy.aggregate(model, [report(0, 4, 0, angle=0, feedback=0)])
    assert strategy.state["angles"] == {}  # only a client's last angle counts


def test_orders_carry_a_clients_pace_and_the_mean_angle():
    """n = 1, 1, 2: 3 n_i / 4.  An angle counts twice the mean at most: 150 / 60: 1 + 2^2 = 5."""
    strategy, model = FedQS(expected_share=0.5), GlobalModel(vec(0), 3)
    assert strategy.dispatch(model, 0)[1] == {}
    angles = [(0, 10, 0), (1, 20, 0), (2, 150, 1), (2, 150, 0)]
    updates = [report(client, 1, angle=a, feedback=asks) for client, a, asks in angles]
    strategy.aggregate(model, updates)
    assert strategy.report["weight"] == pytest.approx([1 / 8, 1 / 8, 5 / 8, 1 / 8])
    orders = [strategy.dispatch(model, client)[1] for client in range(4)]
    assert orders == [{"pace": pace, "mean_angle": 60} for pace in (0.75, 0.75, 1.5)] + [{}]


# -- FedQS: the client ----------------------------------------------------------------------------

# x = [4, 1], w_o = [0, 1], the model before [0, 0], own displacement [1, 0]: theta = 90.
# Two steps with rate r and momentum m from g = [-4, 0]: w_end - w_o = 4 r (2 + m - r).
POINT = Quadratic([[[4.0, 1.0]]])
HELD = {"received": vec(0, 0), "displacement": vec(1, 0)}
SETTINGS = {"upload": "delta", "local_lr": 0.5, "local_steps": 2, "rate_step": 0.1}


@pytest.mark.parametrize(
    ("before", "pace", "mean_angle", "lr", "momentum", "feedback"),
    [
        (0.5, 2, 45, 0.5, 0, 1),  # fast, turned
        (0.5, 0.5, 45, 0.7, 0.1, 0),  # slow, turned; one class: F = 2
        (0.5, 2, 99, 0.45, 0.3, 0),  # fast: 1/2 - 1/20, 1/10 + 2 (99 / 90 - 1)
        (0.08, 1.25, 90, 0.005, 0.1, 0),  # fast: 0.08 - 0.08 is less than 1/100 1/2
        (0.3, 0.1, 99, 1.0, 0.3, 0),  # slow: F = 9, and 1.2 is more than 2 1/2
        (0.05, 0.1, 99, 0.95, 0.3, 0),
        (0.5, 1, 180, 0.6, 0.5, 0),  # slow; 1/10 + 2 (2 - 1) is too large
    ],
)
def test_speed_and_direction_choose_rate_momentum_and_feedback(
    before, pace, mean_angle, lr, momentum, feedback
):
    trainer, state = FedQSTrainer(POINT, **SETTINGS), {**HELD, "lr": np.array(before)}
    config = {"pace": pace, "mean_angle": mean_angle}
    upload = trainer.train(order_for(0, 2, vec(0, 1), config, state=state))
    assert upload.rate_sum == pytest.approx(2 * lr)
    assert upload.vector == pytest.approx([4 * lr * (2 + momentum - lr), 0], abs=1e-5)
    assert upload.metrics == {"angle": pytest.approx(90), "feedback": feedback}
    new_state = upload.state
    assert new_state["lr"] == pytest.approx(lr)
    assert new_state["received"].tolist() == [0, 1]
    assert new_state["displacement"].tolist() == upload.vector.tolist()
    # Without the server's values, the next order keeps the rate and has no momentum.
    later = trainer.train(order_for(0, 3, vec(0, 1), {}, state=new_state))
    assert later.vector == pytest.approx([4 * lr * (2 - lr), 0], abs=1e-5)
    assert later.metrics == {"angle": 0, "feedback": 0}  # the global model stood still


@pytest.mark.parametrize(("weights", "feedback"), [((0, 0), 1), ((1, -1), 0)])
def test_a_slow_turned_client_asks_for_feedback_if_class_accuracies_differ(weights, feedback):
    """With zero weights class 0 is always predicted; with [1, -1] both classes are."""
    inputs, classes = np.array([[1], [2], [-1], [-2]], np.float32), np.array([0, 0, 1, 1])
    linear = nn.Linear(1, 2, bias=False)
    task = Task.from_arrays(inputs, classes, model=linear, clients=[0] * 4)
    state = {"received": vec(*weights) - vec(0, 1), "displacement": vec(1, 0)}
    order = order_for(0, 2, vec(*weights), {"pace": 0.5, "mean_angle": 45.0}, state=state)
    upload = FedQSTrainer(task, **SETTINGS).train(order)
    assert upload.metrics["feedback"] == feedback


# -- methods with all clients at work --------------------------------------------------------------

ROUNDS = [
    (0, (0, [4, 0], 0), (0, [2, 0], 0), (1, [0, 6], 0), (2, [3, 3], 0)),
    (1, (0, [6, 0], 0)),
    (2, (1, [0, 2], 0)),
    (3, (2, [1, 1], 1), (0, [1, 2], 2), (1, [1, 3], 3)),
]
DUDE = [
    (0, (0, [3, 0], 0)),
    (1, (1, [0, 6], 0)),
    (2, (0, [0, 3], 1)),
    (3, (1, [3, 0], 2), (2, [3, 3], 0)),
]


def test_ringleader_steps_along_the_mean_of_the_means_of_a_round():
    strategy = Ringleader()
    same_steps(steps(strategy, ROUNDS[:1]), [[2, 3]])
    assert strategy.report["weight"] == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3])
    same_steps(steps(strategy, ROUNDS[1:]), [[7 / 3, 3], [7 / 3, 7 / 3], [1, 2]])


def test_a_ringleader_round_without_a_client_of_the_last_versions_starts_anew():
    """Client 1 makes version 1 and leaves; 2 alone is the next round; of 0 only [2, 0] counts."""
    script = [(0, (0, [8, 0], 0), (1, [0, 8], 0)), (1, (2, [0, 0], 1)), (2, (0, [2, 0], 1))]
    strategy = Ringleader()
    same_steps(steps(strategy, script), [[4, 4], [8 / 3, 8 / 3], [2 / 3, 8 / 3]])


def test_dude_asgd_replaces_a_clients_part_of_the_mean():
    same_steps(steps(ACE(over="all", num_clients=3), DUDE), [[1, 0], [1, 2], [0, 3], [2, 2]])


def test_a_round_takes_all_clients_and_then_each_arrival_makes_a_version():
    times = Times(lambda client, number: [1.0, 3.7, 5.05][client])
    events = run(TwoPhase(), num_clients=3, num_versions=6, devices=times).kind("aggregate")
    one, four = [0, 0, 0, 1, 0, 0, 2], [0, 0, 0, 0, 2, 0, 1]
    assert [event["client"] for event in events] == [one, [0], [1], four, [0], [2]]
    assert [event["t"] for event in events] == pytest.approx([5.05, 6, 7.4, 11.1, 12, 15.15])


def test_a_round_does_not_wait_for_failed_clients():
    """Client 2 fails at 2.6 s and is back at 5.2 s: the first round, until 4 s, is of 0 and 1."""

    def fails(client, sequence, received):
        if client == 2 and sequence == 0:
            raise OSError("no power")
        return toward_own_number(client, sequence, received)

    times = Times(lambda client, number: [1.0, 3.7, 2.6][client])
    result = run(TwoPhase(), Scripted(fails), num_clients=3, num_versions=3, devices=times)
    clients = [event["client"] for event in result.kind("aggregate")]
    assert clients == [[0, 0, 0, 1], [0], [0, 2, 0, 0, 1]]


def test_rescaled_asgd_steps_in_proportion_to_the_clients_seconds():
    strategy, model = RescaledASGD(), GlobalModel(vec(0, 0), 5)
    orders = [[(0, 1)], [(1, 3)], [(0, 1)], [(0, 4)], [(0, 2), (1, 3)]]
    expected = [[2, 4], [3, 6], [1, 2], [1.6, 3.2], [2, 4]]
    for each, step in zip(orders, expected, strict=True):
        updates = [update_of(client, 3, 2, 4, seconds=seconds) for client, seconds in each]
        np.testing.assert_allclose(-strategy.aggregate(model, updates), step, rtol=1e-6)
    assert strategy.report["weight"] == pytest.approx([0.4, 0.6])


# -- work measured out -----------------------------------------------------------------------------

PACE = (1.0, 1.9, 6.0)  # seconds of a step; simulated clients have one step of their own
SMALL = {"min_steps": 2, "max_steps": 10, "speed_momentum": 1.0}


class Again:
    """A schedule that is restored from its own checkpoint before every call."""

    def __init__(self, make):
        self.make, self.saved = make, make().state_dict()

    def __getattr__(self, name):
        schedule = self.make()
        schedule.load_state_dict(loads(dumps(self.saved)))
        attribute = getattr(schedule, name)
        if not callable(attribute) or name == "state_dict":
            return attribute

        def call(*args):
            answer = attribute(*args)
            self.saved = schedule.state_dict()
            return answer

        return call


def versions(schedule, seconds, num_versions, **more):
    """Second, clients and ages of every version."""
    settings = {"num_clients": len(PACE), "devices": Times(seconds), "steps": lambda client: 1}
    events = run(schedule, num_versions=num_versions, **(settings | more)).kind("aggregate")
    return [(round(e["t"], 6), sorted(e["client"]), e["age"]) for e in events]


COURSE = [
    *((10, [0]), (19, [1]), (20, [0]), (30, [0]), (34.2, [0, 1]), (44.2, [0, 1]), (54.2, [0, 1])),
    *((60, [2]), (64.2, [0, 1]), (74.2, [0]), (78, [0, 1, 2])),
]


@pytest.mark.parametrize("wrap", [lambda make: make(), Again], ids=["straight", "resumed"])
def test_groups_of_clients_arrive_together(wrap):
    result = versions(wrap(lambda: Compass(**SMALL)), lambda client, _: PACE[client], len(COURSE))
    assert [each[:2] for each in result] == COURSE


def test_a_late_update_joins_the_next_group_and_its_client_begins_at_once():
    """B's second order takes four times as long, until 79.8: at 41.8 the group goes without it."""

    def seconds(client, sequence):
        return PACE[client] * (4 if (client, sequence) == (1, 1) else 1)

    result = versions(Compass(**SMALL), seconds, 13)
    assert result[:5] == [(10, [0], [0]), (19, [1], [1]), (20, [0], [1]), (30, [0], [0]),
                         (41.8, [0], [0])]  # fmt: skip
    ages = {clock: age for clock, clients, age in result if clock > 79.8 and 1 in clients}
    # It began at version 2, and comes with the first group after 79.8.
    assert max(next(iter(ages.values()))) > 5


def test_a_group_with_a_failed_member_is_skipped():
    schedule = Compass(**SMALL)
    schedule._pace, schedule._groups = {0: 1.0}, {7: (0.1, 100.0)}
    assert schedule._assign(0) == schedule.max_steps


def test_equally_fast_clients_are_one_group_and_the_step_is_fedbuffs():
    result = versions(Compass(**SMALL), lambda *_: 0.1, 7, num_clients=4)
    assert [len(clients) for _, clients, _ in result] == [1, 1, 1, 1, 4, 4, 4]
    assert [age for _, _, age in result[5:]] == [[0] * 4] * 2
    model = GlobalModel(vec(0, 0), version=3, history={1: vec(0, 0), 3: vec(0, 0)})
    updates = [update_of(0, 3, 4, 0, kind="delta"), update_of(1, 1, 0, 8, kind="delta")]
    ours = FedCompass().aggregate(model, updates)  # two clients have uploaded
    np.testing.assert_allclose(ours, FedBuff(server_lr=0.9).aggregate(model, updates))
    # 0.9 / 4 (4, 0) + 0.9 / 4 3^(-1/2) (0, 8)
    alone = FedCompass(num_clients=4).aggregate(model, updates)
    np.testing.assert_allclose(alone, [0.9, 1.8 / 3**0.5], rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda make: make(), Again], ids=["straight", "resumed"])
def test_the_buffer_is_aggregated_at_the_pace_of_the_slowest_at_work(wrap):
    schedule = wrap(lambda: Guided(concurrency=2))
    result = versions(schedule, lambda client, _: (4, 10)[client], 5, num_clients=2)
    assert [each[:2] for each in result] == [
        *((4, [0]), (8, [0]), (10, [1]), (15, [0]), (20, [0, 1]))
    ]
    assert [each[2] for each in result] == [[0], [0], [2], [1], [0, 1]]


@pytest.mark.parametrize("wrap", [lambda make: make(), Again], ids=["straight", "resumed"])
@pytest.mark.parametrize(("third", "ends"), [(5.0, (28, 37)), (6.5, (29, 38))])
def test_a_round_has_the_work_that_queues_leave_and_late_updates_wait_for_the_next(
    wrap, third, ends
):
    """Waits are of 2 seconds, but for client 1's third."""
    waits = defaultdict(lambda: 2.0, {(1, 2): third})
    devices = Times(lambda client, number: Parts(waits[client, number], (1.0, 3.0)[client], 0.0))

    def make():
        smooth = {"queue_smoothing": 1.0, "pace_smoothing": 1.0}
        schedule = QueueAware(10.0, 0.2, 0.1, 1.0, **smooth, warm_up_steps=2)
        schedule.settle(devices.parts, None)
        return schedule

    schedule = wrap(make)
    result = versions(schedule, None, 4, num_clients=2, devices=devices)
    assert result[:2] == [(8, [0, 1], [0, 0]), (17, [0, 1], [0, 0])]
    assert result[2] == (ends[0], [0], [0])
    assert (result[3][:2], sorted(result[3][2])) == ((ends[1], [0, 1]), [0, 1])
    assert schedule.work(0) == {"local_steps": 7, "local_lr_factor": pytest.approx(2 / 7)}


def test_queues_are_smoothed_and_may_be_reported_by_clients():
    """q = (6 + 2) / 2 = 4, c = (26 - 6) / 20 = 1, then (3600 - 4 - 60) / 1 steps."""
    report = {"metrics": {"queue_seconds": 6.0}, "seconds": 26.0, "steps": 20}
    schedule = after_version(QueueAware(), update_of(0, 0, 1, order=0, **report), version=1)
    assert schedule.start(ClientPool([0]), (), [], np.random.default_rng(0)) == [0]
    assert schedule.work(0) == {"local_steps": 3536, "local_lr_factor": 1.0}


def test_fedqueues_weights_are_steps_over_age_and_equal_ones_are_fedavgs():
    """7 steps of age 0 and 2 of age 1: 7 and 2 / (1 + 1), so 7/8 and 1/8."""
    model = GlobalModel(vec(0, 0), version=3, history={2: vec(0, 0), 3: vec(0, 0)})
    fresh, stale = (update_of(i, 3 - i, 8, 8 * i, kind="model", steps=(7, 2)[i]) for i in (0, 1))
    assert FedQueue(staleness_rate=1.0).aggregate(model, [fresh, stale]).tolist() == [8, 1]
    equal = [replace(each, steps=4) for each in (fresh, stale)]
    params = FedQueue().aggregate(model, equal)
    assert params.tolist() == FedAvg().aggregate(model, equal).tolist() == [8, 4]


def after_version(schedule, *updates, version):
    """The schedule after a version of these updates, of clients that began at second 0."""
    schedule.wake(0.0)
    schedule.start(ClientPool(u.client_id for u in updates), (), [], np.random.default_rng(0))
    assert list(schedule.take(updates)) == list(updates)
    schedule.recall({}, version)
    return schedule


@pytest.mark.parametrize(("exponent", "best"), [(1.0, 0), (0.0, 1)])
def test_a_place_goes_to_the_client_of_the_highest_loss_over_staleness(exponent, best):
    """10 x 2 of age 0; 10 x 3.5 of age 1, which halves it at an exponent of 1."""
    schedule = Guided(concurrency=2, exploration=0.0, min_exploration=0.0, exponent=exponent)
    fresh = update_of(0, 1, 1, loss=2.0, order=0, seconds=1.0)
    stale = update_of(1, 0, 1, loss=3.5, order=1, seconds=1.0)
    after_version(schedule, fresh, stale, version=2)
    idle, rng = ClientPool([0, 1, 2]), np.random.default_rng(0)
    assert schedule.start(idle, [9], [], rng) == [best]
    # With exploration, a client whose loss is unknown comes first, and e falls.
    schedule = after_version(Guided(concurrency=2, exploration=1.0), fresh, stale, version=2)
    assert schedule.start(idle, [9], [], rng) == [2]
    assert schedule.state_dict()["_exploring"] == pytest.approx(0.98**2)


def test_a_client_with_five_outlier_losses_is_left_out():
    """It is an outlier once in the first version, and with each of the second's four arrivals."""
    assert outliers(np.array([1.0, 1.2, 1.1, 9.0]), 0.5, 2).tolist() == [False] * 3 + [True]
    schedule, idle = Guided(concurrency=4, robust=True), ClientPool(range(4))
    for base, left in ((0, 4), (1, 3)):
        losses = enumerate((1.0, 1.1, 1.2, 9.0))
        batch = [update_of(i, base, 1, loss=x, order=4 * base + i, seconds=1.0) for i, x in losses]
        after_version(schedule, *batch, version=base + 1)
        assert len(schedule.start(idle, (), [], np.random.default_rng(0))) == left


def test_bounds_of_two_keys():
    with pytest.raises(ValueError, match=r"max_steps=3 must be at least .*min_steps=4"):
        Compass(4, 3)
    with pytest.raises(ValueError, match=r"min_exploration=0.3 must be at most .*=0.1"):
        Guided(exploration=0.1)
