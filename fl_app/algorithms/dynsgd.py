"""DynSGD: updates weighted inversely to their staleness.

Jiang, Cui, Zhang, Yu: "Heterogeneity-aware Distributed Parameter Servers", SIGMOD 2017
(dynamic learning rate); in the K-asynchronous form of FedHist's comparison (arXiv:2312.10425).

Server, once K uploads have arrived:

    w_{t+1} = w_t - eta sum_i p_i g_i
    p_i = tau_i^(-a) / sum_j tau_j^(-a)
    p_i = tau_i^(-a) / K                      normalise = False

Client: g_i = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient
of one mini-batch at w_o.

Symbols: eta server_lr, tau_i = t - o + 1 >= 1 the staleness, a exponent, 1 in the papers.

Deviations: the original divides each update's learning rate by its staleness. That is
``normalise=False``, which equals SASGD to the bit. FedHist's eq. 4 has weights that sum to 1. Other
exponents are not in the papers: 1/2 is FedBuff's discount, and normalised a strong baseline, the
freshness mean.
"""

from dataclasses import dataclass

from fl_app.core.hyper import bounded, within
from fl_app.core.weighting import Weighting
from fl_app.strategy.weighted import AveragesVersions, PubliclyWeighted


@dataclass(kw_only=True)
class DynSGD(PubliclyWeighted, AveragesVersions):
    """One step along the mean of K gradients, weighted by a power of 1 / staleness.

    Args:
        exponent: how fast weights fall with age; 0 = not at all.
        normalise: whether the weights are divided by their sum.
        averaging: how much more later versions count in their mean; None = the last one is tested.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "pseudo", 10, 0.5)
        >>> stale = Update(2, 1, np.array([0, 2], np.float32), "pseudo", 30, 0.5)
        >>> DynSGD().aggregate(model, [fresh, stale]).tolist()
        [-1.5, -0.5]
    """

    exponent: float = bounded(1.0, within("[0, 50]"), "staler updates would count more, or none")
    normalise: bool = True

    def public_weights(self) -> Weighting:
        return Weighting("polynomial", exponent=self.exponent)
