"""FedDyn by hand: the shifted loss of one client, and the server's two models."""

import numpy as np
import pytest
from helpers import Quadratic, order_for, vec

from fl_app.algorithms.feddyn import FedDyn
from fl_app.algorithms.feddyn.trainer import FedDynTrainer
from fl_app.core.types import Config, GlobalModel, Update

ONE = Quadratic([[[3.0]]])


def model(client_id: int, version: int, w: float, examples: int) -> Update:
    return Update(client_id, version, vec(w), "model", examples, 0.0)


def test_client_over_two_orders() -> None:
    """f(w) = (w - 3)^2 / 2, n = 1, rate 1/2, alpha = 1/2; g = (w - 3) + alpha_i (h + w - c).

    c = 1, h = 0, alpha_i = 1/2:         g = -2,              w = 2
                                         g = -1 + 1/2,        w = 2.25;     h = 1.25
    c = 2, mean n = 2: alpha_i = 1:      g = -1 + 1.25,       w = 1.875
                                         g = -1.125 + 1.125,  w = 1.875;    h = 1.25 - 0.125
    """
    trainer = FedDynTrainer(ONE, local_lr=0.5, local_steps=2)
    first = trainer.train(order_for(0, 0, vec(1), {"regularisation": 0.5}))
    assert first.vector.tolist() == [2.25]
    assert first.state["memory"].tolist() == [1.25]
    config: Config = {"regularisation": 0.5, "mean_examples": 2.0}
    second = trainer.train(order_for(0, 1, vec(2), config, state=first.state))
    assert second.vector.tolist() == [1.875]
    assert second.state["memory"].tolist() == [1.125]
    assert first.state["memory"].tolist() == [1.25]


def test_the_clip_holds_for_the_pull_too() -> None:
    """g = -2 is cut to -1: w = 1.5; g = -1.5 + 0.25 is cut to -1: w = 2."""
    trainer = FedDynTrainer(ONE, local_lr=0.5, local_steps=2, max_grad_norm=1.0)
    assert trainer.train(order_for(0, 0, vec(1), {"regularisation": 0.5})).vector.tolist() == [2.0]


def test_server_over_two_rounds() -> None:
    """m = 4, c = 1.

    Uploads 2.25 (n 1) and 3.25 (n 3): mean 2.75, sum of memories 1.25 + 2.25 = 3.5,
    c = 2.75 + 3.5 / 4 = 3.625. Then client 0 sends 2.625: mean 2.625, sum 3.5 - 1 = 2.5,
    c = 2.625 + 2.5 / 4 = 3.25.
    """
    strategy = FedDyn(regularisation=0.5, num_clients=4)
    start = GlobalModel(vec(1), 0)
    assert strategy.to_evaluate(start) is start.params
    assert strategy.dispatch(start, 0) == (start.params, {"regularisation": 0.5})
    c = strategy.aggregate(start, [model(0, 0, 2.25, 1), model(1, 0, 3.25, 3)])
    assert c.tolist() == [3.625]
    assert strategy.report["weight"] == [0.5, 0.5]
    later = GlobalModel(c, 1)
    assert strategy.to_evaluate(later).tolist() == [2.75]
    assert strategy.dispatch(later, 0)[1] == {"regularisation": 0.5, "mean_examples": 2.0}
    assert strategy.aggregate(later, [model(0, 1, 2.625, 1)]).tolist() == [3.25]
    assert strategy.to_evaluate(later).tolist() == [2.625]


def test_without_a_number_all_clients_are_those_heard() -> None:
    """Both: c = 2.75 + 3.5 / 2 = 4.5; then the sum 3.5 + 1.5 of three: c = 6 + 5 / 3."""
    strategy = FedDyn()
    c = strategy.aggregate(GlobalModel(vec(1), 0), [model(0, 0, 2.25, 1), model(1, 0, 3.25, 3)])
    assert c.tolist() == [4.5]
    third = strategy.aggregate(GlobalModel(c, 1), [model(2, 1, 6.0, 1)])
    assert third.tolist() == pytest.approx([6 + 5 / 3])


def test_the_server_knows_the_sum_of_what_clients_remember() -> None:
    task = Quadratic.scattered(4)
    trainer = FedDynTrainer(task, local_lr=0.1, local_steps=3, batch_size=3)
    strategy, params, memories = FedDyn(num_clients=4), vec(0, 0, 0), {}
    for version, cohort in enumerate([(0, 1), (1, 2), (0, 1)]):
        updates, state = [], GlobalModel(params, version)
        for client_id in cohort:
            vector, config = strategy.dispatch(state, client_id)
            upload = trainer.train(
                order_for(client_id, version, vector, config, state=memories.get(client_id))
            )
            memories[client_id] = upload.state
            updates.append(Update.of(upload, client_id, version))
        params = strategy.aggregate(state, updates)
    total = sum(memory["memory"] for memory in memories.values())
    assert np.linalg.norm(total) > 1
    np.testing.assert_allclose(strategy.state["memory"], total, rtol=1e-5)


def test_buffers_are_averaged_and_not_remembered() -> None:
    """w: mean 3, memory 2 + 4, c = 3 + 6 / 2; the buffers 7 and 9 give 8."""
    strategy = FedDyn()
    updates = [
        Update(0, 0, vec(2, 7), "model", 1, 0.0),
        Update(1, 0, vec(4, 9), "model", 1, 0.0),
    ]
    c = strategy.aggregate(GlobalModel(vec(0, 5), 0, num_trainable=1), updates)
    assert c.tolist() == [6.0, 8.0]
    assert strategy.state["memory"].tolist() == [6.0]
