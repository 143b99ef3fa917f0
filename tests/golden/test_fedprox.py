"""FedProx by hand: the server averages, the order carries mu, the client is pulled back."""

from configs import composed
from helpers import Quadratic, order_for, vec

from fl_app.algorithms.fedavg import FedAvg
from fl_app.algorithms.fedprox import FedProx
from fl_app.client import LocalTrainer
from fl_app.core.types import GlobalModel, Update
from fl_app.runner.validate import build_strategy

UPDATES = [Update(0, 3, vec(2, 8), "model", 10, 0.0), Update(1, 3, vec(6, 0), "model", 30, 0.0)]


def test_server_averages_by_examples() -> None:
    """10/40 (2, 8) + 30/40 (6, 0) = (5, 2), wherever the global model is."""
    model, strategy = GlobalModel(vec(1, 1), 3), FedProx(proximal=0.5)
    assert strategy.aggregate(model, UPDATES).tolist() == [5.0, 2.0]
    assert strategy.report["weight"] == [0.25, 0.75]
    assert FedAvg().aggregate(model, UPDATES).tolist() == [5.0, 2.0]


def test_client_takes_mu_from_the_order() -> None:
    """f(w) = (w - 3)^2 / 2 from w_t = 1 with rate 1/2, mu = 1/2, two steps:

    g = -2 + 0, w = 2;    g = -1 + 1/2 (2 - 1) = -1/2, w = 2.25.

    Without mu: g = -2, w = 2; g = -1, w = 2.5.
    """
    vector, config = FedProx(proximal=0.5).dispatch(GlobalModel(vec(1), 0), client_id=0)
    trainer = LocalTrainer(Quadratic([[[3.0]]]), local_lr=0.5, local_steps=2)
    assert trainer.train(order_for(0, 0, vector, config)).vector.tolist() == [2.25]
    assert trainer.train(order_for(0, 1, vector, {})).vector.tolist() == [2.5]
    # The order goes before the trainer's own.
    held = LocalTrainer(Quadratic([[[3.0]]]), local_lr=0.5, local_steps=2, proximal=0.5)
    assert held.train(order_for(0, 0, vector, {})).vector.tolist() == [2.25]
    assert held.train(order_for(0, 0, vector, {"proximal-mu": 0.0})).vector.tolist() == [2.5]


def test_mu_of_the_client_reaches_its_orders() -> None:
    strategy = build_strategy(composed("algorithm=fedprox", "algorithm.client.proximal=1"))
    assert strategy.dispatch(GlobalModel(vec(1), 0), client_id=0)[1] == {"proximal-mu": 1}
