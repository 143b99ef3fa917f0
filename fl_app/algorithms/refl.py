"""REFL: a stale update's weight falls with its age and grows with its difference from fresh ones.

Abdelmoniem, Sahu, Canini, Fahmy: "REFL: Resource-Efficient Federated Learning", EuroSys 2023,
arXiv:2111.01108 (staleness-aware aggregation); details as in the authors' code.

Server, once K uploads have arrived. The n_F youngest, of equal age, are fresh and have the mean
ubar. The others s are stale:

    L_s = ||ubar - (g_s + n_F ubar) / (n_F + 1)||^2 / ||ubar||^2
    v_s = (1 - b) / (age_s + 1) + b (1 - exp(-L_s / max L) / scale)
    v_f = 1 for the fresh
    p_i = v_i / sum_j v_j,    w_{t+1} = w_t - eta sum_i p_i g_i

Client: g_i = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient
of one mini-batch at w_o.

Symbols: eta server_lr, b boost.

Deviations: REFL has rounds, and the fresh updates are those of the round. Here they are the
youngest of the K. With ``scale=1`` v_s is as printed; the authors' code has 10. Clients are not
selected.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import UNIT_INTERVAL, at_least, bounded
from fl_app.core.types import Flags, GlobalModel, Numbers, Updates, Vector
from fl_app.core.vector import norm, weighted_sum
from fl_app.schedule import k_async
from fl_app.strategy.weighted import AveragesVersions


@dataclass(kw_only=True)
class REFL(AveragesVersions):
    """One step along the mean of K gradients, weighted by age and deviation from the fresh ones.

    Args:
        boost: b, share of the deviation in a stale update's weight.
        scale: divides the exponential of the deviation.
        averaging: how much more later versions count in their mean; None = the last one is tested.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "pseudo", 10, 0.5)
        >>> stale = Update(2, 2, np.array([0, 2], np.float32), "pseudo", 30, 0.5)
        >>> REFL(boost=0.0).aggregate(model, [fresh, stale]).round(3)
        array([-1.333, -0.667], dtype=float32)
    """

    schedule = k_async(10)
    looks_at = "how far every stale update deviates from the fresh ones"

    boost: float = bounded(0.35, UNIT_INTERVAL, "it is a share")
    scale: float = bounded(1.0, at_least(1), "weights could be negative")

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        ages = np.array([model.age(update) for update in updates])
        gradients = self.gradients(model, updates)
        deviation = _deviation([g[: model.num_trainable] for g in gradients], ages == ages.min())
        weights = (1 - self.boost) / (ages + 1) + self.boost * (1 - np.exp(-deviation) / self.scale)
        weights[ages == ages.min()] = 1
        direction = self.average(model, weights / weights.sum(), gradients)
        return self.step(model, direction, self.server_lr)


def _deviation(gradients: Sequence[Vector], fresh: Flags) -> Numbers:
    """L_i / max L, in [0, 1], shape ``(K,)``; 0 for all if ubar is 0 or all agree."""
    mean = weighted_sum(fresh / fresh.sum(), gradients)
    # NOTE: ubar - (g + n_F ubar) / (n_F + 1) = (ubar - g) / (n_F + 1), so n_F and ||ubar|| cancel
    # in the quotient.
    squares = np.array([norm(mean - gradient) ** 2 for gradient in gradients])
    squares[fresh] = 0
    largest = squares.max()
    return squares / largest if largest > 0 and mean.any() else np.zeros(len(gradients))
