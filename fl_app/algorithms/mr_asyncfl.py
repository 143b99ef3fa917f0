"""MR.AsyncFL: a new local model takes the place of its client's last one in the global model.

"MR.AsyncFL: Staleness-Aware Aggregation for Asynchronous Federated Learning via Model Replacement",
TMLR submission 8556 (2026), openreview iwdvaRbrnU, section 3.

Server, on every arrival w_i of client i, whose last model was v_i (w_0 before its first):

    w_{t+1} = gamma w_t + (1 - gamma) w_i + gamma c_i (w_i - v_i)
    c_i <- gamma c_i + 1 - gamma,    c_j <- gamma c_j  (j != i),    c = 1 / N at first
    v_i <- w_i

So w_t = sum_j c_j v_j with sum_j c_j = 1; without the last term it is FedAsync. Client: local SGD.

Symbols: gamma discount, N num_clients.

Deviations: the paper sends client i the version from before its upload was taken in; here a client
starts from the version of the moment when the schedule starts it. A client with more than tau
versions is sent a new model in the paper; here its upload is refused when it arrives. Clients
beyond the first N, and all of them if N is not given, begin at c = 0: then w_0 fades as in
FedAsync. Several updates at once (another schedule) are taken in one after the other.
"""

from dataclasses import dataclass

from fl_app.core.hyper import BELOW_1, COUNT, NON_NEGATIVE, bounded
from fl_app.core.types import TRAINED, GlobalModel, Updates, Vector
from fl_app.core.vector import weighted_sum
from fl_app.schedule import fully_async
from fl_app.strategy import AsyncStrategy


@dataclass(kw_only=True)
class MRAsyncFL(AsyncStrategy):
    """A mean of the clients' last models; a client's weight falls until its next upload.

    The server keeps the last model of every client: 4 N d bytes.

    Args:
        discount: gamma, by which an arrival multiplies the others' weights.
        num_clients: N; None = no client has a share of w_0.
        max_staleness: tau, versions; an older upload is refused. None = any age.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=0)
        >>> first = Update(1, 0, np.array([2, 0], np.float32), "model", 10, 0.5)
        >>> strategy = MRAsyncFL(discount=0.5, num_clients=2)
        >>> strategy.aggregate(model, [first]).tolist()  # (1/2 + 1/2 1/2) 2
        [1.5, 0.0]
    """

    schedule = fully_async(10)
    takes = TRAINED
    looks_at = "the last model of every client"
    # By client v_i and c_i; w_0, and gamma^t, what is left of its weight.
    first_state = {"models": {}, "weights": {}, "initial": None, "left": 1.0}

    discount: float = bounded(0.8, BELOW_1, "new models would count for nothing")
    num_clients: int | None = bounded(None, COUNT, "there would be no client to train")
    max_staleness: int | None = bounded(None, NON_NEGATIVE, "every update would be refused")

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        params, gamma, state = model.params, self.discount, self.state
        models, weights, self.report["weight"] = state["models"], state["weights"], []
        if state["initial"] is None:
            state["initial"] = params.copy()
        for update in updates:
            client, local = update.client_id, model.local(update)
            shared = self.num_clients is not None and len(weights) < self.num_clients
            first = state["left"] / self.num_clients if shared else 0.0
            old = gamma * weights.get(client, first)
            last = models.get(client, state["initial"])
            new = old + 1 - gamma
            params = weighted_sum([gamma, new, -old], [params, local, last])
            for other in weights:
                weights[other] *= gamma
            state["left"] *= gamma
            weights[client], models[client] = new, local
            self.report["weight"].append(new)
        return params

    def memory_cost(self, size: int, num_clients: int) -> str:
        return f"MRAsyncFL keeps {4 * size / 1e6:,.1f} MB of each client's model"
