"""SCAFFOLD: control variates correct the drift of clients with unequal data.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, arXiv:1910.06378, Algorithm 1 with option II.

Server, once the uploads of S have arrived, with c = 0 at first:

    x <- x + eta_g mean_S (y_i - x),    c <- c + (|S| / N) mean_S (c_i+ - c_i)

Client, from the received x and c, with c_i = 0 before its first order, K steps from y_i = x:

    y_i <- y_i - eta_l (g_i(y_i) - c_i + c)

and then

    c_i+ = c_i - c + (x - y_i) / (K eta_l),    c_i <- c_i+

The client uploads y_i - x and, as a second vector, c_i+ - c_i. An order carries c beside x.

Symbols: eta_g server_lr, eta_l client.local_lr, N num_clients, S the clients of one aggregation, c
and c_i control variates.

Deviations: the paper has rounds. In a schedule without rounds a displacement starts from x_o, the
version that the client received, and c_i+ is computed with c_o, the c of that version. Neither is
discounted by age. c is the sum of all changes of the c_i over N, so it is the mean of the c_i at
any age of the updates. Lost and refused uploads are the exception: their clients have changed c_i.
N is num_clients, or the number of clients that have reported if that is larger or num_clients is
not given. If the rate changes within an order, K eta_l is the sum of its rates. Momentum, weight
decay and client.max_grad_norm change the steps and so the estimate (x - y_i) / (K eta_l). Buffers
such as batch normalisation's move by the mean of the displacements and have no control variate.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, POSITIVE, bounded
from fl_app.core.types import TRAINED, Extra, GlobalModel, Updates, Vector
from fl_app.core.vector import read_only, weighted_sum
from fl_app.schedule import synchronous
from fl_app.strategy import AsyncStrategy

CONTROL = "control"


@dataclass(kw_only=True)
class SCAFFOLD(AsyncStrategy):
    """A server step along the mean displacement; sends and collects control variates.

    Args:
        server_lr: the server's learning rate.
        num_clients: number of clients; None = those that have reported so far.

    Examples:
        >>> vector = np.array([1, 2], np.float32)
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> update = Update(1, 3, vector, "delta", 10, 0.5, extra={"control": -vector})
        >>> strategy = SCAFFOLD(num_clients=4)
        >>> strategy.aggregate(model, [update]).tolist()
        [1.0, 2.0]
        >>> strategy.dispatch_extra(model, client_id=2)["control"].tolist()
        [-0.25, -0.5]
    """

    schedule = synchronous(10)
    takes = TRAINED
    needs = "fl_app.algorithms.scaffold.trainer.SCAFFOLDTrainer"
    order_extra = (CONTROL,)  # c
    upload_extra = (CONTROL,)  # c_i+ - c_i
    looks_at = "a second vector of every client, which nothing masks"
    first_state = {
        "control": None,  # c
        "changes": np.float32(0),  # sum of all c_i+ - c_i
        "heard": set(),  # clients
    }

    server_lr: float = bounded(1.0, POSITIVE, "the model would not move")
    num_clients: int | None = bounded(None, COUNT, "there would be no client to train")

    def dispatch_extra(self, model: GlobalModel, client_id: int) -> Extra:
        if self.state["control"] is None:
            self.state["control"] = read_only(np.zeros_like(model.params))
        return {CONTROL: self.state["control"]}

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        clients = self.state["heard"]
        clients.update(update.client_id for update in updates)
        population = max(self.num_clients or 0, len(clients))
        changes = weighted_sum([1.0] * len(updates), [u.extra[CONTROL] for u in updates])
        changes += self.state["changes"]
        control = changes / np.float32(population)
        control.flags.writeable = False
        self.state["changes"], self.state["control"] = changes, control
        weights = [1 / len(updates)] * len(updates)
        mean = self.average(model, weights, [model.delta(update) for update in updates])
        return self.step(model, -mean, self.server_lr)
