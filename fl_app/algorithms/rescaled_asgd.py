"""Rescaled ASGD: steps in proportion to the client's own time, so that all clients count alike.

Mahran, Maranjyan, Richtarik: "Rescaled Asynchronous SGD: Optimal Distributed Optimization under
Data and System Heterogeneity", arXiv:2605.13434.

Server, on every arrival g of client c:

    w_{t+1} = w_t - eta_c g,    eta_c = eta tau_c / ((1/N) sum_j tau_j)

A client that is always at work makes T / tau_c of these steps in T seconds: their rates sum to the
same for every client.

Client: g = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient of
one mini-batch at w_o.

Symbols: eta server_lr, tau_c the mean seconds of client c's orders so far, N the clients heard.

Deviations: in the paper, whose rule is that of its abstract, eta_c is proportional to tau_c, and
tau_c is given and constant. Our eta is the mean client's rate, and the server measures tau_c, from
the dispatch of an order to its arrival, this one's among them [A]. Until slow clients report,
fast ones count more. All clients must be at work, as in the paper: if clients are drawn, slow ones
count more. Several updates at once (another schedule) make one step along their mean. Where no
time passes, as in Flower's own loop, all tau_c are equal.
"""

import numpy as np

from fl_app.core.types import GlobalModel, Numbers, Updates
from fl_app.schedule import fully_async
from fl_app.strategy.weighted import WeightedGradients


class RescaledASGD(WeightedGradients):
    """A step along each gradient, in proportion to the seconds that its client takes.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fast = Update(1, 3, np.array([2, 0], np.float32), "pseudo", 10, 0.5, seconds=1.0)
        >>> slow = Update(2, 2, np.array([0, 2], np.float32), "pseudo", 10, 0.5, seconds=3.0)
        >>> strategy = RescaledASGD()
        >>> strategy.aggregate(model, [fast]).tolist()
        [-2.0, 0.0]
        >>> strategy.aggregate(model, [slow]).tolist()  # 3 s / 2 s
        [0.0, -3.0]
    """

    schedule = fully_async(None)
    looks_at = "every client's own time, which the helper does not know"
    first_state = {"orders": {}, "seconds": {}}  # client -> number, and tau_c

    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        orders, seconds = self.state["orders"], self.state["seconds"]
        for update in updates:
            client_id = update.client_id
            orders[client_id] = orders.get(client_id, 0) + 1
            before = seconds.get(client_id, 0.0)
            seconds[client_id] = before + (update.seconds - before) / orders[client_id]
        own = np.array([seconds[update.client_id] for update in updates])
        mean = np.mean([*seconds.values()])
        return (own / mean if mean else np.ones_like(own)) / len(updates)
