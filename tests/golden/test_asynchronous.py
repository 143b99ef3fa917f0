"""Flower's own strategies on K arrivals, against hand-derived values.

w_t = [1, 1] at version 5. Three updates started from w_3 = [0, 0] and moved by [3, 0], [0, 3] and
[9, 9] with n = 10, 10, 20 examples. On the current model they are the models

    [4, 1], [1, 4], [10, 10]

    FedAvg    (10 [4, 1] + 10 [1, 4] + 20 [10, 10]) / 40 = [250, 250] / 40 = [6.25, 6.25]
    FedMedian [4, 4]
    Krum      with one malicious client scores each by its 3 - 1 - 2 = 0 -> 1 nearest neighbour:
              |[4, 1] - [1, 4]|^2 = 18 < |[4, 1] - [10, 10]|^2 = 117: the first of the close pair
    FedAdam   eta = 0.1, beta_1 = beta_2 = 0, tau = 1: Delta = FedAvg - w_t = [5.25, 5.25],
              m = Delta, v = Delta^2, w_{t+1} = w_t + 0.1 m / (sqrt(v) + 1) = 1 + 0.1 * 5.25 / 6.25
              = [1.084, 1.084]
"""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from flwr.serverapp import strategy as flower
from helpers import vec

from fl_app.asynchronous import Asynchronous
from fl_app.core.types import GlobalModel, Update

MODEL = GlobalModel(vec(1, 1), version=5, history={3: vec(0, 0)})
UPDATES = [
    Update(0, 3, vec(3, 0), "model", 10, 0.1),
    Update(1, 3, vec(0, 3), "delta", 10, 0.1),
    Update(2, 3, vec(9, 9), "model", 20, 0.1),
]


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (flower.FedAvg(), [6.25, 6.25]),
        (flower.FedMedian(), [4, 4]),
        (flower.Krum(num_malicious_nodes=1), [4, 1]),
        (flower.FedAdam(eta=0.1, beta_1=0.0, beta_2=0.0, tau=1.0), [1.084, 1.084]),
    ],
    ids=["FedAvg", "FedMedian", "Krum", "FedAdam"],
)
def test_inner_strategy_aggregates_displacements_on_the_current_model(inner, expected):
    np.testing.assert_allclose(Asynchronous(inner).aggregate(MODEL, UPDATES), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "inner",
    [
        lambda: flower.FedAdam(eta=0.1, tau=1.0),
        lambda: flower.FedYogi(eta=0.1, tau=1.0),
        lambda: flower.FedAvgM(server_momentum=0.9),
        flower.FedMedian,
    ],
    ids=["FedAdam", "FedYogi", "FedAvgM", "FedMedian"],
)
def test_who_is_given_the_state_goes_on_where_the_other_was(inner):
    strategy = Asynchronous(inner())
    strategy.aggregate(MODEL, UPDATES)
    restored = Asynchronous(inner())
    restored.state = deepcopy(strategy.state)
    expected = strategy.aggregate(MODEL, UPDATES[:2])
    assert restored.aggregate(MODEL, UPDATES[:2]).tobytes() == expected.tobytes()


def test_inner_must_be_a_flower_strategy():
    with pytest.raises(ValueError, match="must be based on flwr"):
        Asynchronous(object())  # type: ignore[arg-type]


def test_fedprox_tells_its_clients_mu():
    params, config = Asynchronous(flower.FedProx(proximal_mu=0.1)).dispatch(MODEL, client_id=7)
    assert params is MODEL.params
    assert config == {"proximal-mu": 0.1}


class Halving(flower.FedAvg):
    """A rate that halves with every round, and says for whom it is."""

    def __init__(self):
        super().__init__()
        self.rate, self.told = 1.0, []

    def configure_train(self, server_round, arrays, config, grid):
        self.rate *= 0.5
        self.told.append(server_round)
        config["lr"], config["node"] = self.rate, next(iter(grid.get_node_ids()))
        return super().configure_train(server_round, arrays, config, grid)


def test_a_version_is_one_round_however_many_clients_start_from_it():
    inner = Halving()
    strategy = Asynchronous(inner)
    orders = [strategy.dispatch(MODEL, client_id)[1] for client_id in range(1000)]
    assert orders == [{"lr": 0.5, "node": client_id} for client_id in range(1000)]
    assert (inner.rate, inner.told) == (0.5, [6])
    strategy.aggregate(MODEL, UPDATES)
    assert strategy.dispatch(replace(MODEL, version=6), 0)[1] == {"lr": 0.25, "node": 0}
    assert inner.told == [6, 7]


def test_who_goes_on_amid_a_version_is_told_what_the_others_were():
    strategy, restored = Asynchronous(Halving()), Asynchronous(Halving())
    strategy.dispatch(MODEL, 0)
    strategy.aggregate(MODEL, UPDATES)
    later = replace(MODEL, version=6)
    strategy.dispatch(later, 0)
    restored.state = deepcopy(strategy.state)
    assert restored.dispatch(later, 1) == strategy.dispatch(later, 1)
    for each in (restored, strategy):
        each.aggregate(later, UPDATES)
        assert each.dispatch(replace(MODEL, version=7), 2)[1]["lr"] == 0.125
