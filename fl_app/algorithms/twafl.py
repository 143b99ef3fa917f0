"""TWAFL: K-asynchronous aggregation with weights that decay exponentially with staleness.

Chen, Sun, Jin: "Communication-Efficient Federated Deep Learning With Layerwise Asynchronous Model
Update and Temporally Weighted Aggregation", IEEE TNNLS 2020, arXiv:1903.07424 (temporally
weighted aggregation); in the gradient form of WKAFL's comparison (arXiv:2203.01214).

Server, once K uploads have arrived:

    w_{t+1} = w_t - eta sum_i p_i g_i
    p_i = (e/2)^(-tau_i) / sum_j (e/2)^(-tau_j)     normalise = True
    p_i = (n_i / n) (e/2)^(-tau_i)                  normalise = False, as printed

Client: g_i, the gradient of one mini-batch at w_o, or (w_o - w_i) / (sum of local learning rates).

Symbols: eta server_lr, tau_i = t - o the age, n_i number of examples, n = sum_i n_i.

Deviations: the default is normalised weights without n_i, as in WKAFL's published code. The printed
weights vanish with the age, and the step with them. There is no layerwise schedule.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import POSITIVE, bounded
from fl_app.core.staleness import exponential, freshness
from fl_app.core.types import GlobalModel, Numbers, Updates
from fl_app.core.weighting import Weighting
from fl_app.strategy.weighted import WeightedGradients


@dataclass(kw_only=True)
class TWAFL(WeightedGradients):
    """One step along the mean of K gradients, weighted by (e/2)^(-staleness).

    Args:
        normalise: whether the weights are divided by their sum.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "gradient", 10, 0.5)
        >>> stale = Update(2, 1, np.array([0, 2], np.float32), "gradient", 30, 0.5)
        >>> TWAFL(server_lr=1.0).aggregate(model, [fresh, stale]).round(3)
        array([-1.298, -0.702], dtype=float32)
    """

    linear_in = ("pseudo", "gradient")

    server_lr: float = bounded(0.3, POSITIVE, "the model would not move")
    normalise: bool = True

    def public_weights(self) -> Weighting:
        return Weighting("exponential", by_examples=not self.normalise)

    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        ages = [model.age(update) for update in updates]
        if self.normalise:
            return freshness(ages)
        weights = np.array([update.num_examples for update in updates], np.float64)
        weights *= [exponential(age) for age in ages] / weights.sum()
        return weights
