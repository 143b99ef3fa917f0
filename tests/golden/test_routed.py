"""Routing by hand: queues in product form, the best probabilities, and the unbiased step."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from helpers import MeanDelta, run, sent, vec

from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.core.types import GlobalModel, Parts
from fl_app.devices.compute import Exponential
from fl_app.devices.fleet import Fleet
from fl_app.schedule import k_async
from fl_app.schedule.routed import LEAST, Routed, best, queues


def complete(loads, degree):
    """h_m: the sum of all products of m loads."""
    return sum(np.prod(each) for each in combinations_with_replacement(loads, degree))


def test_queues_are_the_product_form():
    # theta = (1, 2): h_1 = 3, h_2 = 1 + 2 + 4 = 7, X = 3/7. Of 7: (2, 0) 1, (1, 1) 2, (0, 2) 4.
    throughput, length, less = queues(np.array([1.0, 2.0]), 2)
    assert throughput == pytest.approx(3 / 7)
    np.testing.assert_allclose(length, [(2 * 1 + 2) / 7, (2 + 2 * 4) / 7])
    np.testing.assert_allclose(less, [1 / 3, 2 / 3])
    loads = np.array([0.3, 1.0, 2.5, 0.7])
    assert queues(loads, 5)[0] == pytest.approx(complete(loads, 4) / complete(loads, 5))


def test_equal_clients_are_drawn_alike_and_slow_or_costly_ones_less():
    np.testing.assert_allclose(best(np.ones(5), np.ones(5), 4), 0.2, atol=1e-4)
    seconds = np.array([1.0, 2.0, 8.0])
    found = best(seconds, np.ones(3), 3)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= LEAST / 3
    # No other probabilities bring more: a grid over the simplex.
    grid = [np.array([a, b, 20 - a - b]) / 20 for a in range(1, 19) for b in range(1, 20 - a)]
    most = max(queues(each * seconds, 3)[0] for each in grid if each.min() >= LEAST / 3)
    assert queues(found * seconds, 3)[0] >= most
    costly = best(np.ones(2), np.array([1.0, 3.0]), 2)
    assert costly[0] > 0.6


def test_a_run_has_the_throughput_and_the_shares_of_theory():
    size, orders = 6, 4
    devices = Fleet(Exponential(num_clients=size, seed=3))
    factor = [1, 1, 2, 2, 4, 4]

    class Slower:
        def parts(self, client_id, sequence, now):
            seconds = devices.parts(client_id, sequence, now).seconds
            return Parts(0.0, factor[client_id] * seconds, 0.0)

    schedule = Routed(size, orders, "throughput")
    schedule.settle(Slower().parts, lambda *_: None)
    p = np.array(schedule.shares) / size
    strategy = MeanDelta()
    ran = run(schedule, num_clients=size, num_versions=20000, devices=Slower(), strategy=strategy)
    arrivals = ran.kind("arrival")
    updates, expected = schedule.long_run(np.array(factor, float))
    assert len(arrivals) / arrivals[-1]["t"] == pytest.approx(updates.sum(), rel=0.02)
    clients = np.array([each["client"] for each in arrivals])
    np.testing.assert_allclose(np.bincount(clients) / len(arrivals), p, atol=0.01)
    ages = np.array([each["age"] for each in arrivals])
    means = [ages[clients == client_id].mean() for client_id in range(size)]
    np.testing.assert_allclose(means, expected, rtol=0.05)
    assert strategy.shares == schedule.shares


def test_the_unbiased_step_divides_by_the_share():
    # eta 1/2, N p = (0.5, 2): [1, 1] - 1/2 1/0.5 [2, 0] = [-1, 1]; two at once halve each.
    strategy = FedAvgK(server_lr=0.5, weighting="unbiased")
    strategy.shares = [0.5, 2.0]
    model = GlobalModel(vec(1, 1), 5)
    first, second = sent(0, 5, 2, 0, kind="gradient"), sent(1, 5, 0, 4, kind="gradient")
    assert strategy.aggregate(model, [first]).tolist() == [-1, 1]
    # 1/2 (1/(2 0.5) [2, 0] + 1/(2 2) [0, 4]) = [1, 1/2]
    assert strategy.aggregate(model, [first, second]).tolist() == [0, 0.5]


def test_refusals():
    with pytest.raises(ValueError, match="aim=fast must be"):
        Routed(3, aim="fast")
    with pytest.raises(ValueError, match="aim=energy must be used with devices/energy"):
        Routed(3, aim="energy").settle(lambda *_: Parts(0.0, 1.0, 0.0), lambda *_: None)
    with pytest.raises(ValueError, match="weighting=unbiased must be used with algorithm/schedule"):
        FedAvgK(weighting="unbiased").validate_run(10, k_async(1))
