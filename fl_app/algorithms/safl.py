"""SAFL: K-asynchronous aggregation weighted by examples over staleness.

The staleness-aware baseline of EAFL's comparison (`fl_app.algorithms.eafl`, eq. 1), in gradient
form.

Server, once K uploads have arrived:

    w_{t+1} = w_t - eta sum_i p_i g_i,    p_i = |D_i| / (tau_i sum_j |D_j|)

Client: g_i, the gradient of one mini-batch at w_o, or (w_o - w_i) / (sum of local learning rates).

Symbols: eta server_lr, |D_i| number of examples of client i, tau_i = t - o + 1 >= 1 the staleness.

Deviations: EAFL prints it as a mixture of models, with a minus sign that reverses the model. As in
EAFL, the weights do not sum to 1: the step shrinks with the staleness.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_app.core.hyper import POSITIVE, bounded
from fl_app.core.staleness import polynomial
from fl_app.core.types import GlobalModel, Update
from fl_app.strategy.weighted import WeightedGradients


@dataclass(kw_only=True)
class SAFL(WeightedGradients):
    """One step along the sum of K gradients, weighted by examples over staleness.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "gradient", 10, 0.5)
        >>> stale = Update(2, 2, np.array([0, 2], np.float32), "gradient", 30, 0.5)
        >>> SAFL(server_lr=1.0).aggregate(model, [fresh, stale]).tolist()
        [-0.5, -0.75]
    """

    server_lr: float = bounded(1.5, POSITIVE, "the model would not move")

    def weights(self, model: GlobalModel, updates: Sequence[Update]) -> NDArray[np.float64]:
        weights = np.array([update.num_examples for update in updates], np.float64)
        weights /= weights.sum()
        weights *= [polynomial(model.age(update), 1.0) for update in updates]
        return weights
