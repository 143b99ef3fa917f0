"""FedDyn: each client's loss is shifted until its optimum equals the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on Dynamic
Regularization", ICLR 2021, arXiv:2111.04263, Algorithm 1, in the form of its authors' code.

Client, from the received c, with h_i = 0 at first and alpha_i = alpha / (n_i / mean n):

    minimise f_i(w) + alpha_i <w, h_i - c> + (alpha_i / 2) ||w||^2,    then h_i <- h_i + w_i - c

so a step adds alpha_i (h_i + w - c) to the gradient.

Server, once all of the round's cohort have reported:

    mean = mean_cohort w_i,    c <- mean + (1 / m) sum_all h_i

Clients receive c. The mean is tested and saved (`FedDyn.to_evaluate`). The server knows the sum of
all h_i, because the sum grows by each upload. It misses uploads that are lost or refused, which
their clients have added to h_i.

Symbols: alpha regularisation; m num_clients; n_i number of training examples of client i.

Deviations: h_i and alpha_i are those of the code. The paper has gradients in place of
displacements, and one alpha. Every order carries the mean n of the clients that have reported so
far. Before the first report alpha_i = alpha [A]. client.max_grad_norm clips the whole gradient; the
code's clip leaves out alpha_i w. Buffers such as batch normalisation's are averaged, and h_i does
not cover them.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, POSITIVE, bounded
from fl_app.core.types import TRAINED, Config, GlobalModel, Updates, Vector
from fl_app.core.vector import weighted_sum
from fl_app.schedule import synchronous
from fl_app.strategy import AsyncStrategy


@dataclass(kw_only=True)
class FedDyn(AsyncStrategy):
    """Mean of the local models plus the mean of all clients' memories h_i.

    Args:
        regularisation: alpha, the weight of the shift.
        num_clients: number of clients; None = those that have reported so far.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> one = Update(1, 3, np.array([2, 0], np.float32), "delta", 10, 0.5)
        >>> other = Update(2, 3, np.array([0, 2], np.float32), "delta", 30, 0.5)
        >>> strategy = FedDyn(num_clients=4)
        >>> strategy.aggregate(model, [one, other]).tolist()
        [1.5, 1.5]
        >>> strategy.to_evaluate(model).tolist()
        [1.0, 1.0]
    """

    schedule = synchronous(10)
    takes = TRAINED
    needs = "fl_app.algorithms.feddyn.trainer.FedDynTrainer"
    looks_at = "sums over several versions, of which nobody has shown that they hide uploads"
    first_state = {
        "examples": {},  # client -> n_i
        "memory": np.float32(0),  # sum of all h_i, trainable part
        "mean": None,  # of the last cohort's models
    }

    regularisation: float = bounded(0.01, POSITIVE, "memories would have no weight")
    num_clients: int | None = bounded(None, COUNT, "no client would have a memory")

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        config = {"regularisation": self.regularisation}
        if self.state["examples"]:
            config["mean_examples"] = float(np.mean(list(self.state["examples"].values())))
        return model.params, config

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        split, weights = model.num_trainable, [1 / len(updates)] * len(updates)
        mean = weighted_sum(weights, [model.local(update) for update in updates])
        memory = sum(model.delta(update)[:split] for update in updates) + self.state["memory"]
        self.state["examples"].update((u.client_id, u.num_examples) for u in updates)
        self.state["memory"], self.state["mean"] = memory, mean
        params = mean.copy()
        params[:split] += memory / np.float32(self.num_clients or len(self.state["examples"]))
        self.report["weight"] = weights
        return params

    def to_evaluate(self, model: GlobalModel) -> Vector:
        mean: Vector | None = self.state["mean"]
        return model.params if mean is None else mean
