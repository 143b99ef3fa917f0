"""SCAFFOLD by hand: two clients over two rounds, and what travels beside the models."""

from typing import Any

import numpy as np
import pytest
from helpers import Quadratic, order_for, run, vec

from fl_app.algorithms.scaffold import SCAFFOLD
from fl_app.algorithms.scaffold.trainer import SCAFFOLDTrainer
from fl_app.core.types import GlobalModel, Update
from fl_app.schedule import fully_async, synchronous

# f_0(w) = (w - 4)^2 / 2 and f_1(w) = (w + 2)^2 / 2: gradients w - 4 and w + 2, optimum 1.
TASK = Quadratic([[[4.0]], [[-2.0]]])


def test_two_clients_over_two_rounds() -> None:
    """eta_l = 1/2, K = 2, so K eta_l = 1; eta_g = 1, N = 2; x = 0, c = c_0 = c_1 = 0.

    Round 1, nothing to correct:
        client 0: 0 -> 2 -> 3         y - x = 3,     c_0+ = 0 - 0 - 3 = -3,      change -3
        client 1: 0 -> -1 -> -1.5     y - x = -1.5,  c_1+ = 1.5,                 change 1.5
        x = 0 + 1.5 / 2 = 0.75,       c = 0 + (-3 + 1.5) / 2 = -0.75

    Round 2, g_i - c_i + c:
        client 0 adds 3 - 0.75 = 2.25:     g = -3.25 + 2.25 = -1,      y = 1.25
                                           g = -2.75 + 2.25 = -0.5,    y = 1.5
            y - x = 0.75,   c_0+ = -3 + 0.75 - 0.75 = -3,              change 0
        client 1 adds -1.5 - 0.75 = -2.25: g = 2.75 - 2.25 = 0.5,      y = 0.5
                                           g = 2.5 - 2.25 = 0.25,      y = 0.375
            y - x = -0.375, c_1+ = 1.5 + 0.75 + 0.375 = 2.625,         change 1.125
        x = 0.75 + (0.75 - 0.375) / 2 = 0.9375,   c = -0.75 + 1.125 / 2 = -0.1875
    """
    strategy = SCAFFOLD(num_clients=2)
    trainer = SCAFFOLDTrainer(TASK, upload="delta", local_lr=0.5, local_steps=2)
    params, states, seen = vec(0), {}, []
    for version in range(2):
        model, updates = GlobalModel(params, version), []
        for client_id in range(2):
            vector, config = strategy.dispatch(model, client_id)
            extra = strategy.dispatch_extra(model, client_id)
            order = order_for(client_id, version, vector, config, states.get(client_id), extra)
            upload = trainer.train(order)
            states[client_id] = upload.state
            seen.append((*upload.vector, *upload.extra["control"], *upload.state["control"]))
            updates.append(Update.of(upload, client_id, version))
        params = strategy.aggregate(model, updates)
    assert seen == [(3, -3, -3), (-1.5, 1.5, 1.5), (0.75, 0, -3), (-0.375, 1.125, 2.625)]
    assert params.tolist() == [0.9375]
    assert strategy.state["control"].tolist() == [-0.1875]
    assert strategy.report["weight"] == [0.5, 0.5]


@pytest.mark.parametrize("kind", ["model", "delta", "pseudo"])
def test_the_control_variate_is_the_same_whatever_is_uploaded(kind: str) -> None:
    """As client 1 above in round 2."""
    trainer = SCAFFOLDTrainer(TASK, upload=kind, local_lr=0.5, local_steps=2)
    state, extra = {"control": vec(1.5)}, {"control": vec(-0.75)}
    upload = trainer.train(order_for(1, 1, vec(0.75), {}, state, extra))
    assert upload.extra["control"].tolist() == [1.125]
    assert state["control"].tolist() == [1.5]


def change(client_id: int, version: int, delta: float, control: float) -> Update:
    extra = {"control": vec(control)}
    return Update(client_id, version, vec(delta), "delta", 10, 0.0, extra=extra)


def test_an_update_that_is_late_counts_as_it_is() -> None:
    """N = 4, eta_g = 1/2: x = 8 + (4 - 2) / 2 / 2 = 8.5, c = 0 + (6 + 2) / 4, whatever the ages."""
    strategy = SCAFFOLD(server_lr=0.5, num_clients=4)
    model = GlobalModel(vec(8), 3, {1: vec(0), 3: vec(8)})
    params = strategy.aggregate(model, [change(0, 1, 4, 6), change(1, 3, -2, 2)])
    assert params.tolist() == [8.5]
    assert strategy.state["control"].tolist() == [2.0]


def test_without_a_number_the_clients_are_those_heard() -> None:
    """c = 6 / 1; then a second one is heard: c = (6 + 3) / 2, the mean of their c_i."""
    strategy = SCAFFOLD()
    strategy.aggregate(GlobalModel(vec(0), 0), [change(5, 0, 0, 6)])
    assert strategy.state["control"].tolist() == [6.0]
    strategy.aggregate(GlobalModel(vec(0), 1), [change(6, 1, 0, 3)])
    assert strategy.state["control"].tolist() == [4.5]


def test_more_clients_than_were_announced_are_counted() -> None:
    """num_clients = 1, but two are heard: c = (4 + 2) / 2."""
    strategy = SCAFFOLD(num_clients=1)
    strategy.aggregate(GlobalModel(vec(0), 0), [change(0, 0, 0, 4), change(1, 0, 0, 2)])
    assert strategy.state["control"].tolist() == [3.0]


def test_buffers_move_by_their_mean_and_have_no_control_variate() -> None:
    """w: 0 + (2 + 4) / 2 / 2, the buffer: 5 + (2 + 4) / 2."""
    strategy = SCAFFOLD(server_lr=0.5, num_clients=2)
    updates = [
        Update(i, 0, vec(d, d), "delta", 1, 0.0, extra={"control": vec(d, 0)})
        for i, d in enumerate((2, 4))
    ]
    params = strategy.aggregate(GlobalModel(vec(0, 5), 0, num_trainable=1), updates)
    assert params.tolist() == [1.5, 8.0]
    assert strategy.state["control"].tolist() == [3.0, 0.0]


CLIENTS = 10
SCATTERED = Quadratic.scattered(CLIENTS)
STEPS: Any = {"local_lr": 0.1, "batch_size": 3, "local_steps": 5}


@pytest.mark.parametrize("schedule", [synchronous(4), fully_async(5)])
def test_c_is_the_mean_of_what_clients_keep_however_old_updates_are(schedule: Any) -> None:
    kept: dict[int, Any] = {}

    class Keeping(SCAFFOLDTrainer):
        def train(self, order: Any) -> Any:
            upload = super().train(order)
            kept[order.number] = order.client_id, upload.state["control"]
            return upload

    trainer = Keeping(SCATTERED, upload="delta", **STEPS)
    made = run(schedule, trainer, strategy=SCAFFOLD(num_clients=CLIENTS), num_versions=12)
    latest = {made_by: control for _, (made_by, control) in sorted(kept.items())}
    assert made.history.client_updates == len(kept)  # nobody trained ahead of an end
    total = sum(latest.values())
    np.testing.assert_allclose(made.strategy.state["control"], total / CLIENTS, atol=1e-5)
    assert np.linalg.norm(total) > 0.1


def test_a_gradient_teaches_no_control_variate() -> None:
    with pytest.raises(ValueError, match=r"client\.upload=gradient must be model, delta or pseudo"):
        SCAFFOLDTrainer(TASK, upload="gradient")
