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
far. Two parts are left out: the re-weighting of features on the server, which shrinks the first
layer with every upload, and data that arrive during training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fl_app.client import LocalTrainer
from fl_app.core.hyper import at_least, bounded, count, or_none, within
from fl_app.core.types import TRAINED, Config, GlobalModel, Order, Update, Upload, Vector
from fl_app.core.vector import weighted_sum
from fl_app.schedule import Schedule, fully_async
from fl_app.strategy import AsyncStrategy


@dataclass(kw_only=True)
class ASOFed(AsyncStrategy):
    """Adds each arrival's displacement, by the client's share of all examples.

    Args:
        regularisation: lambda, the pull towards the received model.
        decay: b, the share of h that a step keeps.
        num_clients: number of clients whose examples n counts; None = those that have reported.

    Example:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> update = Update(1, 2, np.array([4, 8], np.float32), "delta", 10, 0.5)
        >>> strategy = ASOFed(num_clients=4)
        >>> strategy.aggregate(model, [update]).tolist()
        [1.0, 2.0]
    """

    schedule: ClassVar[Schedule] = fully_async(10)
    takes: ClassVar[Sequence[str]] = TRAINED
    needs: ClassVar[str] = "fl_app.algorithms.aso_fed.ASOFedTrainer"

    regularisation: float = bounded(1.0, at_least(0), "training would flee the received model")
    decay: float = bounded(0.001, within("[0, 1)"), "nothing would be learned")
    num_clients: int | None = bounded(None, or_none(count()), "there would be nobody to train")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.state = {
            "examples": {},  # client -> n_i
            "delays": {},  # client -> number of uploads, sum of their delays
        }

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        number, total = self.state["delays"].get(client_id, (1, 1))
        return model.params, {
            "regularisation": self.regularisation,
            "decay": self.decay,
            "local_lr_factor": max(1.0, math.log(total / number)),
        }

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        examples, delays = self.state["examples"], self.state["delays"]
        for update in updates:
            examples[update.client_id] = update.num_examples
            number, total = delays.get(update.client_id, (0, 0))
            delays[update.client_id] = number + 1, total + model.age(update) + 1
        known = list(examples.values())
        total = np.mean(known) * (self.num_clients or len(known))
        weights = [float(update.num_examples / total) for update in updates]
        self.report["weight"] = weights
        return model.params + weighted_sum(weights, [model.delta(update) for update in updates])


class ASOFedTrainer(LocalTrainer):
    """Local SGD along z; a client keeps h and v between its orders."""

    def begin(self, config: Config, rng: np.random.Generator) -> None:
        """Restore h and v of the client's last order."""
        del rng
        self._regularisation = float(config["regularisation"])
        self._decay = float(config["decay"])
        self._received = [p.detach().clone() for p in self.model.params]
        self._h, self._v = (
            self._like_params(self.state.get(name)) or [torch.zeros_like(p) for p in self._received]
            for name in ("h", "v")
        )

    def correct(self, grad: list[Tensor], step: int) -> list[Tensor]:
        """z = g - v + h. g includes the pull towards the received model."""
        del step
        params: list[Tensor] = self.model.params  # type: ignore[assignment]
        pull = list(torch._foreach_sub(params, self._received))
        g = list(torch._foreach_add(grad, pull, alpha=self._regularisation))
        z = list(torch._foreach_sub(g, self._v))
        torch._foreach_add_(z, self._h)
        h = list(torch._foreach_mul(self._h, self._decay))
        torch._foreach_add_(h, self._v, alpha=1.0 - self._decay)
        self._h, self._v = h, g
        return z

    def train(self, order: Order, out: Vector | None = None) -> Upload:
        upload = super().train(order, out)
        return replace(upload, state={"h": _flat(self._h), "v": _flat(self._v)})


def _flat(tensors: list[Tensor]) -> Vector:
    vector: Vector = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu().numpy()
    return vector
