"""ASGD for unequal data and speeds against hand-derived values; eta = 1, w = 0 each time.

Ringleader (Maranjyan, Richtarik 2026), N = 3. The mean of all clients' means of the round:

version   client: gradient                                       means                    step
0         0: [4, 0]   0: [2, 0]   1: [0, 6]   2: [3, 3]          [3, 0] [0, 6] [3, 3]     [2, 3]
1         0: [6, 0], its third                                   [4, 0] [0, 6] [3, 3]     [7, 9] / 3
2         1: [0, 2], its second                                  [4, 0] [0, 4] [3, 3]     [7, 7] / 3
3         the next round: 2: [1, 1]   0: [1, 2]   1: [1, 3]      [1, 2] [1, 3] [1, 1]     [1, 2]

Its schedule: orders of client 0 take 1 s, of 1 3.7 s, of 2 5.05 s; nobody ever waits to begin.

    version 1 at 5.05 s, the first arrival of 2: also 0 at 1, 2, 3, 4, 5 s and 1 at 3.7 s
    versions 2 and 3: 0 at 6 s, and 1 at 7.4 s; at 7 s 0 has made its version
    version 4 at 11.1 s, the first of 1 in this round: also 0 at 7, 8, 9, 10, 11 s and 2 at 10.1 s
    versions 5 and 6: 0 at 12 s, and 2 at 15.15 s

Rescaled ASGD (Mahran et al. 2026), tau_c over the mean tau of all heard, gradients [2, 4]:

    0: 1 s     tau = [1]         1 [2, 4]
    1: 3 s     tau = [1, 3]      3/2 [2, 4] = [3, 6]
    0: 1 s     tau = [1, 3]      1/2 [2, 4] = [1, 2]
    0: 4 s     tau = [2, 3]      2 / 2.5 [2, 4] = [1.6, 3.2]
    0: 2 s and 1: 3 s at once    tau = [2, 3]: the mean of 0.8 [2, 4] and 1.2 [2, 4]

    Of 1 s and 3 s for ever, three steps of 1/2 of the one go as far as a step of 3/2 of the other.

DuDe-ASGD (Wang et al. 2024), which is ACE over all, N = 3, h = 0 at first:

    0: [3, 0]                           v = [1, 0]
    1: [0, 6]                           v = [1, 0] + [0, 6] / 3 = [1, 2]
    0: [0, 3]                           v = [1, 2] + [-3, 3] / 3 = [0, 3]
    1: [3, 0]   2: [3, 3] at once       v = [0, 3] + [3, -6] / 3 + [3, 3] / 3 = [2, 2]
"""

import numpy as np
import pytest
from helpers import Scripted, Times, run, same_steps, sent, steps, vec

from fl_app.algorithms.ace import ACE
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.rescaled_asgd import RescaledASGD
from fl_app.algorithms.ringleader import Ringleader
from fl_app.core.types import GlobalModel, Upload
from fl_app.schedule import fully_async
from fl_app.schedule.two_phase import TwoPhase

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


def test_dude_asgd_replaces_a_clients_part_of_the_mean():
    same_steps(steps(ACE(over="all", num_clients=3), DUDE), [[1, 0], [1, 2], [0, 3], [2, 2]])


def course(schedule, strategy, seconds, num_versions):
    """Each client's own number is its gradient; clients take so long."""
    return run(
        schedule,
        Scripted(lambda client, *rest: Upload(vec(client, 1), "gradient", 1, loss=0.0)),
        num_clients=len(seconds),
        num_versions=num_versions,
        devices=Times(lambda client, number: seconds[client]),
        strategy=strategy,
    )


def test_a_round_hears_all_clients_and_then_each_makes_a_version():
    events = course(TwoPhase(), Ringleader(), [1.0, 3.7, 5.05], 6).kind("aggregate")
    one, four = [0, 0, 0, 1, 0, 0, 2], [0, 0, 0, 0, 2, 0, 1]
    assert [event["client"] for event in events] == [one, [0], [1], four, [0], [2]]
    assert [event["t"] for event in events] == pytest.approx([5.05, 6, 7.4, 11.1, 12, 15.15])


def test_no_gradient_of_ringleader_is_older_than_2n_minus_2():
    seconds = [1.0, 1.7, 2.9, 7.3, 19.1]
    result = course(TwoPhase(), Ringleader(), seconds, 100)
    ends, begun = [event["client"][-1] for event in result.kind("aggregate")], {}
    assert all(sorted(ends[i : i + 5]) == [0, 1, 2, 3, 4] for i in range(0, 100, 5))
    for version, event in enumerate(result.kind("aggregate")):
        if version % 5 == 0:
            begun = {}
        for client, age in zip(event["client"], event["age"], strict=True):
            begun[client] = min(version - age, begun.get(client, version))
        assert version - min(begun.values()) <= 8


def test_a_round_waits_for_nobody_who_fails():
    """Client 2 fails at 2.6 s and is back at 5.2 s: the first round, until 4 s, is of 0 and 1."""

    def fails(client, sequence, received):
        if client == 2 and sequence == 0:
            raise OSError("no power")
        return Upload(vec(client, 1), "gradient", 1, loss=0.0)

    times = Times(lambda client, number: [1.0, 3.7, 2.6][client])
    result = run(TwoPhase(), Scripted(fails), num_clients=3, num_versions=3, devices=times)
    taken = [event["client"] for event in result.kind("aggregate")]
    assert taken == [[0, 0, 0, 1], [0], [0, 2, 0, 0, 1]]


def test_rescaled_asgd_steps_in_proportion_to_the_clients_seconds():
    strategy, model = RescaledASGD(), GlobalModel(vec(0, 0), 5)
    orders = [[(0, 1)], [(1, 3)], [(0, 1)], [(0, 4)], [(0, 2), (1, 3)]]
    expected = [[2, 4], [3, 6], [1, 2], [1.6, 3.2], [2, 4]]
    for each, step in zip(orders, expected, strict=True):
        updates = [sent(client, 3, 2, 4, seconds=seconds) for client, seconds in each]
        np.testing.assert_allclose(-strategy.aggregate(model, updates), step, rtol=1e-6)
    assert strategy.report["weight"] == pytest.approx([0.4, 0.6])


def test_fast_and_slow_clients_go_equally_far_with_rescaled_asgd():
    result = course(fully_async(None), RescaledASGD(), [1.0, 3.01], 200)
    far = np.zeros(2)
    for event in result.kind("aggregate")[4:]:
        far[event["client"][0]] += event["weight"][0]
    assert far[0] == pytest.approx(far[1], rel=0.03)


def test_rescaled_asgd_with_equal_times_is_asgd():
    one, other = (
        course(fully_async(None), strategy, [2.0] * 3, 12).outcome.params
        for strategy in (RescaledASGD(server_lr=0.5), FedAvgK(server_lr=0.5))
    )
    assert one.tobytes() == other.tobytes() != bytes(one.nbytes)
