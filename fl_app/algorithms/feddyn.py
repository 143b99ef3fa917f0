"""FedDyn: every client's loss is shifted until its optimum and the global one are the same.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on Dynamic
Regularization", ICLR 2021, arXiv:2111.04263, Algorithm 1, in the form of its authors' code.

Client, from the received c, with h_i = 0 at first and alpha_i = alpha / (n_i / mean n):

    minimise f_i(w) + alpha_i <w, h_i - c> + (alpha_i / 2) ||w||^2,    then h_i <- h_i + w_i - c

which pulls by alpha_i (h_i + w - c).

Server, once all of the round's cohort have reported:

    mean = mean_cohort w_i,    c <- mean + (1 / m) sum_all h_i

c is what clients receive, the mean is what is tested and saved (`FedDyn.to_evaluate`). The sum of
all h_i is known to the server, for it grows by what clients upload (not by what is lost or refused
on the way, which its client remembers all the same).

Symbols: alpha regularisation; m num_clients; n_i number of training examples of client i.

Deviations: h_i and alpha_i are those of the code; the paper has gradients in place of
displacements, and one alpha. The mean n is that of the clients heard so far, told with every order;
before the first is heard alpha_i = alpha [A]. The gradient's clip (client.max_grad_norm) holds for
the whole of it, where the code leaves alpha_i w out. Buffers such as batch normalisation's are
averaged, and h_i has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fl_app.client import LocalTrainer
from fl_app.core.hyper import POSITIVE, bounded, count, or_none
from fl_app.core.types import TRAINED, Config, GlobalModel, Order, Update, Upload, Vector
from fl_app.core.vector import weighted_sum
from fl_app.schedule import Schedule, synchronous
from fl_app.strategy import AsyncStrategy


@dataclass(kw_only=True)
class FedDyn(AsyncStrategy):
    """Mean of the local models, and ahead of it by the mean of what all clients remember.

    Args:
        regularisation: alpha > 0.
        num_clients: m; None = those heard so far.

    Example:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> one = Update(1, 3, np.array([2, 0], np.float32), "delta", 10, 0.5)
        >>> other = Update(2, 3, np.array([0, 2], np.float32), "delta", 30, 0.5)
        >>> strategy = FedDyn(num_clients=4)
        >>> strategy.aggregate(model, [one, other]).tolist()
        [1.5, 1.5]
        >>> strategy.to_evaluate(model).tolist()
        [1.0, 1.0]
    """

    schedule: ClassVar[Schedule] = synchronous(10)
    takes: ClassVar[Sequence[str]] = TRAINED
    needs: ClassVar[str] = "fl_app.algorithms.feddyn.FedDynTrainer"

    regularisation: float = bounded(0.01, POSITIVE, "memories would have no weight")
    num_clients: int | None = bounded(None, or_none(count()), "no client would have a memory")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.state = {
            "examples": {},  # client -> n_i
            "memory": None,  # sum of all h_i, trainable part
            "mean": None,  # of the last cohort's models
        }

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        del client_id
        config = {"regularisation": self.regularisation}
        if self.state["examples"]:
            config["mean_examples"] = float(np.mean(list(self.state["examples"].values())))
        return model.params, config

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        split, weights = model.num_trainable, [1 / len(updates)] * len(updates)
        mean = weighted_sum(weights, [model.local(update) for update in updates])
        memory = sum(model.delta(update)[:split] for update in updates)
        if self.state["memory"] is not None:
            memory += self.state["memory"]
        self.state["examples"].update((u.client_id, u.num_examples) for u in updates)
        self.state["memory"], self.state["mean"] = memory, mean
        params = mean.copy()
        params[:split] += memory / np.float32(self.num_clients or len(self.state["examples"]))
        self.report["weight"] = weights
        return params

    def to_evaluate(self, model: GlobalModel) -> Vector:
        mean: Vector | None = self.state["mean"]
        return model.params if mean is None else mean


class FedDynTrainer(LocalTrainer):
    """Local SGD on the shifted loss; a client keeps h_i between its orders."""

    def begin(self, config: Config, rng: np.random.Generator) -> None:
        """Say where the pull leads to, h_i - c, and how strong it is."""
        del rng
        share = 1.0
        if "mean_examples" in config:
            share = self.task.train_indices(self.client_id).size / float(config["mean_examples"])
        self._alpha = float(config["regularisation"]) / share
        self._shift = [-p.detach() for p in self.model.params]
        if (memory := self._like_params(self.state.get("memory"))) is not None:
            torch._foreach_add_(self._shift, memory)

    def correct(self, grad: list[Tensor], step: int) -> list[Tensor]:
        """g + alpha_i (h_i - c + w)."""
        del step
        params: list[Tensor] = self.model.params  # type: ignore[assignment]
        pull = list(torch._foreach_add(self._shift, params))
        return list(torch._foreach_add(grad, pull, alpha=self._alpha))

    def train(self, order: Order, out: Vector | None = None) -> Upload:
        upload = super().train(order, out)
        split = self.model.layout.num_trainable
        memory = self.model.read()[:split] - order.vector[:split]
        if order.state:
            memory += order.state["memory"]
        return replace(upload, state={"memory": memory})
