"""K-asynchronous federated averaging: the mean of the first K gradients, of any age.

The baseline of staleness-aware methods. K-async SGD: Dutta, Joshi,
Ghosh, Dube, Nagpurkar: "Slow and Stale Gradients Can Win the Race", AISTATS 2018, arXiv:1803.01113,
section 2.

Server, once K uploads have arrived:

    w_{t+1} = w_t - eta sum_i p_i g_i,    p_i = 1/K  or  n_i / n,  n = sum_i n_i

or, of clients that are drawn with probabilities q_i (schedule `Routed`), without bias:

    p_i = 1 / (K N q_i)        with K = 1 Generalized AsyncSGD (Leconte et al., arXiv:2405.00017)

Client: g_i = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient
of one mini-batch at w_o.

Symbols: eta server_lr, w_o the version that client i started from, n_i its number of examples.

Deviations: none.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import bounded, one_of
from fl_app.core.types import GlobalModel, Numbers, Updates
from fl_app.core.weighting import Weighting
from fl_app.schedule import Schedule
from fl_app.strategy.weighted import AveragesVersions, PubliclyWeighted


@dataclass(kw_only=True)
class FedAvgK(PubliclyWeighted, AveragesVersions):
    """One step along the mean of K possibly stale gradients.

    Args:
        server_lr: the server's learning rate. The default moves the model by the clients' mean
            displacement if they upload models. With ``"pseudo"`` uploads, which are mean gradients,
            eta = local_lr x local steps does so.
        weighting: ``"uniform"`` (1/K), ``"examples"`` (n_i/n) or ``"unbiased"`` (1/(K N q_i)).
        averaging: how much more later versions count in their mean; None = the last one is tested.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "pseudo", 10, 0.5)
        >>> stale = Update(2, 2, np.array([0, 2], np.float32), "pseudo", 30, 0.5)
        >>> FedAvgK(weighting="examples").aggregate(model, [fresh, stale]).tolist()
        [-0.5, -1.5]
    """

    linear_in = ("pseudo", "gradient")

    weighting: str = bounded(
        "uniform", one_of("uniform", "examples", "unbiased"), "no other weighting exists"
    )

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        fits = self.weighting != "unbiased" or bool(schedule.shares)
        reason = "it is unknown how often each client is drawn"
        self._require(fits, "weighting", "used with algorithm/schedule=routed", reason)

    def public_weights(self) -> Weighting:
        return Weighting(by_examples=self.weighting == "examples")

    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        if self.weighting != "unbiased":
            return super().weights(model, updates)
        shares = np.array([self.shares[update.client_id] for update in updates])
        return 1 / (len(updates) * shares)
