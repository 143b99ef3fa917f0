"""Federated averaging, in rounds.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, arXiv:1602.05629, Algorithm 1.

Server, once all K clients of a round have reported:

    w_{t+1} = sum_i (n_i / n) w_i,    n = sum_i n_i

Client: E epochs of mini-batch SGD from w_t (`fl_app.client.LocalTrainer`).

Symbols: w_i local model of client i, n_i its number of training examples.

Deviations: none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fl_app.core.types import TRAINED, GlobalModel, Update, Vector
from fl_app.core.vector import weighted_sum
from fl_app.core.weighting import Weighting
from fl_app.schedule import Schedule, synchronous
from fl_app.strategy import AsyncStrategy


@dataclass(kw_only=True)
class FedAvg(AsyncStrategy):
    """Average of the local models, weighted by the number of examples.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> small = Update(1, 3, np.array([4, 0], np.float32), "model", 10, 0.5)
        >>> large = Update(2, 3, np.array([0, 4], np.float32), "model", 30, 0.5)
        >>> FedAvg().aggregate(model, [small, large]).tolist()
        [1.0, 3.0]
    """

    schedule: ClassVar[Schedule] = synchronous(10)
    takes: ClassVar[Sequence[str]] = TRAINED
    linear_in: ClassVar[Sequence[str]] = ("delta",)

    def public_weights(self) -> Weighting:
        return Weighting(by_examples=True)

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        weights = np.array([update.num_examples for update in updates], np.float64)
        weights /= weights.sum()
        self.report = {"weight": weights.tolist()}
        return weighted_sum(weights, [model.local(update) for update in updates])
