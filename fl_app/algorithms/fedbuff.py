"""FedBuff: buffered asynchronous aggregation.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: "Federated Learning with Buffered Asynchronous
Aggregation", AISTATS 2022, arXiv:2106.06639, Algorithm 1 and section 5 (staleness scaling).

Server, once K updates have arrived:

    w_{t+1} = w_t + eta_g (1/K) sum_k s(t - o_k) Delta_k,    s(u) = (1 + u)^(-1/2)  or  1

Client: Delta_k = w_k - w_o after local SGD from w_o. A random idle client then takes its place.

Symbols: eta_g server_lr, K schedule.buffer_size, o_k the base version of the k-th update.

Deviations: no server momentum. Clipping, a falling rate and a mean of versions can be added.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import bounded, one_of
from fl_app.core.types import GlobalModel, Updates, Vector
from fl_app.core.weighting import Weighting
from fl_app.schedule import Buffered
from fl_app.strategy.weighted import AveragesVersions


@dataclass(kw_only=True)
class FedBuff(AveragesVersions):
    """A server step along the mean of K displacements, each discounted by its age.

    Args:
        staleness_function: ``"polynomial"`` or ``"constant"``.
        averaging: how much more later versions count in their mean; None = the last one is tested.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "delta", 10, 0.5)
        >>> stale = Update(2, 0, np.array([0, 2], np.float32), "delta", 30, 0.5)
        >>> FedBuff().aggregate(model, [fresh, stale]).tolist()
        [1.0, 0.5]
    """

    schedule = Buffered(concurrency=10, buffer_size=10)
    linear_in = ("delta",)
    cuts = True

    staleness_function: str = bounded(
        "polynomial", one_of("polynomial", "constant"), "no other function is known"
    )

    def public_weights(self) -> Weighting:
        return Weighting(self.staleness_function, exponent=0.5)

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        weights = self.public_weights().of(model, updates) / len(updates)
        deltas = self.deltas(model, updates)
        mean = self.by_entry(self.average(model, weights, deltas), np.ones(len(updates)), updates)
        return self.step(model, -mean, self.server_lr)
