"""DynSGD: updates weighted inversely to their staleness.

Jiang, Cui, Zhang, Yu: "Heterogeneity-aware Distributed Parameter Servers", SIGMOD 2017
(dynamic learning rate); in the K-asynchronous form of FedHist's comparison (arXiv:2312.10425).

Server, once K uploads have arrived:

    w_{t+1} = w_t - eta sum_i p_i g_i
    p_i = (1 / tau_i) / sum_j (1 / tau_j)
    p_i = 1 / (K tau_i)                       normalise = False

Client: g_i = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient
of one mini-batch at w_o.

Symbols: eta server_lr, tau_i = t - o + 1 >= 1 the staleness.

Deviations: the original divides each update's learning rate by its staleness. That is
``normalise=False``, which equals SASGD to the bit. FedHist's eq. 4 has weights that sum to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_app.core.staleness import polynomial
from fl_app.core.types import GlobalModel, Update
from fl_app.strategy.weighted import WeightedGradients


@dataclass(kw_only=True)
class DynSGD(WeightedGradients):
    """One step along the mean of K gradients, weighted by 1 / staleness.

    Args:
        server_lr: eta, the server's rate.
        normalise: whether the weights are divided by their sum.
        clip_norm: largest norm of an upload's trainable part, > 0; None = any length.
        lr_schedule: how eta falls; None = constant.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "pseudo", 10, 0.5)
        >>> stale = Update(2, 1, np.array([0, 2], np.float32), "pseudo", 30, 0.5)
        >>> DynSGD().aggregate(model, [fresh, stale]).tolist()
        [-1.5, -0.5]
    """

    normalise: bool = True

    def weights(self, model: GlobalModel, updates: Sequence[Update]) -> NDArray[np.float64]:
        inverse = np.array([polynomial(model.age(update), 1.0) for update in updates])
        return inverse / (inverse.sum() if self.normalise else len(updates))
