"""SASGD: K-asynchronous SGD with gradients weighted inversely to their staleness.

Zhang, Gupta, Lian, Liu: "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016,
arXiv:1511.05950 (n-softsync protocol with a learning rate over the staleness); in the form of
WKAFL's comparison (arXiv:2203.01214).

Server, once K uploads have arrived:

    w_{t+1} = w_t - eta sum_i p_i g_i
    p_i = 1 / (K tau_i)
    p_i = (1 / tau_i) / sum_j (1 / tau_j)     normalise = True

Client: g_i, the gradient of one mini-batch at w_o, or (w_o - w_i) / (sum of local learning rates).

Symbols: eta server_lr, tau_i = t - o + 1 >= 1 the staleness.

Deviations: tau counts from 1, as in WKAFL's published code, because 1/tau is undefined for a fresh
gradient's tau = 0. The weights do not sum to 1: the step shrinks with the staleness, so eta must be
several times that of an average.
"""

from dataclasses import dataclass

from fl_app.core.hyper import POSITIVE, bounded
from fl_app.core.weighting import Weighting
from fl_app.strategy.weighted import PubliclyWeighted


@dataclass(kw_only=True)
class SASGD(PubliclyWeighted):
    """One step along the sum of K gradients, each divided by K and by its staleness.

    Args:
        normalise: whether the weights are divided by their sum.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "gradient", 10, 0.5)
        >>> stale = Update(2, 2, np.array([0, 2], np.float32), "gradient", 30, 0.5)
        >>> SASGD(server_lr=1.0).aggregate(model, [fresh, stale]).tolist()
        [-1.0, -0.5]
    """

    server_lr: float = bounded(1.5, POSITIVE, "the model would not move")
    normalise: bool = False

    def public_weights(self) -> Weighting:
        return Weighting("polynomial", exponent=1.0)
