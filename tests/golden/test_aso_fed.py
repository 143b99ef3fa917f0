"""ASO-Fed by hand: three steps of one client over two orders, and the server's shares."""

import math

import numpy as np
import pytest
from helpers import Quadratic, order_for, vec

from fl_app.algorithms.aso_fed import ASOFed
from fl_app.algorithms.aso_fed.trainer import ASOFedTrainer
from fl_app.core.types import Config, GlobalModel, Update

ONE = Quadratic([[[3.0]]])


def delta(client_id: int, version: int, examples: int) -> Update:
    return Update(client_id, version, vec(8, -8), "delta", examples, 0.0)


def test_client_over_two_orders() -> None:
    """f(w) = (w - 3)^2 / 2, lambda = 1/2, b = 1/4, eta = 1/2.

    w_o = 1, r = 1:    g = -2,            z = -2 - 0 + 0,         w = 2;      h = 0,      v = -2
                       g = -1 + 1/2,      z = -0.5 + 2 + 0,       w = 1.25;   h = -1.5,   v = -0.5
    w_o = 2, r = 2:    g = -1,            z = -1 + 0.5 - 1.5,     w = 4;      h = -0.75,  v = -1

    where the last h is 1/4 (-1.5) + 3/4 (-0.5).
    """
    config: Config = {"regularisation": 0.5, "decay": 0.25}
    trainer = ASOFedTrainer(ONE, local_lr=0.5, local_steps=2)
    first = trainer.train(order_for(0, 0, vec(1), {**config, "local_lr_factor": 1.0}))
    assert first.vector.tolist() == [1.25]
    assert {k: v.tolist() for k, v in first.state.items()} == {"h": [-1.5], "v": [-0.5]}
    trainer.local_steps = 1
    second = trainer.train(
        order_for(0, 1, vec(2), {**config, "local_lr_factor": 2.0}, state=first.state)
    )
    assert second.vector.tolist() == [4.0]
    assert second.rate_sum == 1.0
    assert {k: v.tolist() for k, v in second.state.items()} == {"h": [-0.75], "v": [-1.0]}
    assert first.state["h"].tolist() == [-1.5]


def test_an_arrival_counts_by_its_share_of_all_examples() -> None:
    """m = 10. n_0 = 20, n = 200: weight 0.1. Then n_1 = 60, n = 10 * 40: weight 0.15."""
    strategy = ASOFed(num_clients=10)
    model = GlobalModel(vec(1, 1), 4)
    assert strategy.aggregate(model, [delta(0, 4, 20)]).tolist() == pytest.approx([1.8, 0.2])
    assert strategy.report["weight"] == [0.1]
    moved = strategy.aggregate(model, [delta(1, 2, 60)])
    assert moved.tolist() == pytest.approx([1 + 0.15 * 8, 1 - 0.15 * 8])


def test_without_a_number_all_clients_are_those_heard() -> None:
    strategy, model = ASOFed(), GlobalModel(vec(1, 1), 0)
    assert strategy.aggregate(model, [delta(0, 0, 20)]).tolist() == [9.0, -7.0]
    assert strategy.aggregate(model, [delta(1, 0, 60)]).tolist() == [7.0, -5.0]


def test_the_slow_take_longer_steps() -> None:
    """Delays 5 and 1, mean 3: r = ln 3; a mean of 1 or 2, or nothing known, leaves r = 1."""
    strategy, model = ASOFed(regularisation=0.5, decay=0.25), GlobalModel(vec(1, 1), 4)

    def factor(client_id: int) -> float:
        vector, config = strategy.dispatch(model, client_id)
        assert vector is model.params
        assert (config["regularisation"], config["decay"]) == (0.5, 0.25)
        return float(config["local_lr_factor"])

    assert factor(0) == 1.0
    strategy.aggregate(model, [delta(0, 0, 20)])
    assert factor(0) == pytest.approx(math.log(5))
    strategy.aggregate(model, [delta(0, 4, 20), delta(1, 3, 20)])
    assert factor(0) == pytest.approx(math.log(3))
    assert factor(1) == 1.0


def test_features_are_weighed_by_their_size_if_asked() -> None:
    """W = [[2, 0], [1, 1]], no displacement: softmax [0.8807971, 0.1192029] and [1/2, 1/2]."""
    model = GlobalModel(vec(2, 0, 1, 1, 5), 0)
    still = Update(0, 0, vec(0, 0, 0, 0, 0), "delta", 10, 0.0)
    moved = ASOFed(feature_layer=[2, 2]).aggregate(model, [still])
    np.testing.assert_allclose(moved, [1.7615942, 0, 0.5, 0.5, 5], rtol=1e-6)
    assert ASOFed().aggregate(model, [still]).tolist() == [2, 0, 1, 1, 5]
    with pytest.raises(
        ValueError, match=r"^algorithm\.strategy\.feature_layer=\[3, 2\] must be a layer of at"
    ):
        ASOFed(feature_layer=[3, 2]).aggregate(model, [still])
    with pytest.raises(
        ValueError, match=r"^algorithm\.strategy\.feature_layer=\[3\] must be two integers >= 1"
    ):
        ASOFed(feature_layer=[3])
