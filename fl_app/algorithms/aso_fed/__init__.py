"""ASO-Fed: slow clients take longer steps, along gradients that remember earlier ones.

Chen, Ning, Slawski, Rangwala: "Asynchronous Online Federated Learning for Edge Devices with Non-IID
Data", IEEE Big Data 2020, arXiv:1911.02134, Algorithms 1 and 2.

Server, on every upload w_i of a client that started from w_o:

    w_{t+1} = w_t + (n_i / n) (w_i - w_o)

Client: from w_o, with h = v = 0 before its first order, for every mini-batch

    g = grad f_i(w) + lambda (w - w_o),    z = g - v + h,    w <- w - r eta z
    h <- b h + (1 - b) v,                  v <- g

where r = max(1, ln d), d the mean of the client's delays; h and v last from order to order.

Symbols: lambda regularisation, b decay, eta client.local_lr, n_i number of training examples of
client i, n that of all clients.

Deviations: the paper measures the displacement from the "old copy" of the client's model. Here that
is the model which the client received. A delay is counted in versions, age + 1. The client learns
it with its next order [A]. n is num_clients times the mean n_i of the clients that have reported so
far. Data that arrive during training are left out. The re-weighting of features on the server is
off unless `feature_layer` says how large the first layer W is: then, after every upload,

    W_ij <- a_ij W_ij,    a_ij = exp |W_ij| / sum_j exp |W_ij|

which, taken literally, shrinks W by about its number of inputs every time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import BELOW_1, COUNT, NON_NEGATIVE, Bound, bounded, several
from fl_app.core.types import TRAINED, Config, GlobalModel, Updates, Vector
from fl_app.core.vector import weighted_sum
from fl_app.schedule import fully_async
from fl_app.strategy import AsyncStrategy

COUNTS = several("integers >= 1", COUNT.holds)
PAIR = Bound("two integers >= 1", lambda value: COUNTS.holds(value) and len(value) == 2)


@dataclass(kw_only=True)
class ASOFed(AsyncStrategy):
    """Adds each arrival's displacement, by the client's share of all examples.

    Args:
        regularisation: lambda, the pull towards the received model.
        decay: b, the share of h that a step keeps.
        num_clients: clients whose examples n counts; None = those that have reported.
        feature_layer: outputs and inputs of the first layer, whose weights lead the vector; None =
            features are not weighed.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> update = Update(1, 2, np.array([4, 8], np.float32), "delta", 10, 0.5)
        >>> strategy = ASOFed(num_clients=4)
        >>> strategy.aggregate(model, [update]).tolist()
        [1.0, 2.0]
    """

    schedule = fully_async(10)
    takes = TRAINED
    needs = "fl_app.algorithms.aso_fed.trainer.ASOFedTrainer"
    looks_at = "the weight of every client in sums over all versions"
    first_state = {
        "examples": {},  # client -> n_i
        "delays": {},  # client -> number of uploads, sum of their delays
    }

    regularisation: float = bounded(1.0, NON_NEGATIVE, "training would flee the received model")
    decay: float = bounded(0.001, BELOW_1, "nothing would be learned")
    num_clients: int | None = bounded(None, COUNT, "there would be no client to train")
    feature_layer: Sequence[int] | None = bounded(
        None, PAIR, "the first layer's weights could not be found"
    )

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        number, total = self.state["delays"].get(client_id, (1, 1))
        return model.params, {
            "regularisation": self.regularisation,
            "decay": self.decay,
            "local_lr_factor": max(1.0, math.log(total / number)),
        }

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        examples, delays = self.state["examples"], self.state["delays"]
        for update in updates:
            examples[update.client_id] = update.num_examples
            number, total = delays.get(update.client_id, (0, 0))
            delays[update.client_id] = number + 1, total + model.age(update) + 1
        counts = list(examples.values())
        total = np.mean(counts) * (self.num_clients or len(counts))
        weights = [float(update.num_examples / total) for update in updates]
        self.report["weight"] = weights
        deltas = [model.delta(update) for update in updates]
        params: Vector = model.params + weighted_sum(weights, deltas)
        if self.feature_layer is not None:
            outputs, inputs = self.feature_layer
            bound = f"a layer of at most {model.num_trainable} weights"
            fits = outputs * inputs <= model.num_trainable
            self._require(fits, "feature_layer", bound, "the model has no more")
            layer = params[: outputs * inputs].reshape(outputs, inputs)
            size = np.abs(layer)
            shares = np.exp(size - size.max(axis=1, keepdims=True))
            layer *= shares / shares.sum(axis=1, keepdims=True)
        return params
