"""FedStaleWeight: clients whose updates are stale on average count more, so that all count alike.

Ma, Tu, Chen, Reddi: "FedStaleWeight: Buffered Asynchronous Federated Learning with Fair Aggregation
via Staleness Reweighting", arXiv:2406.02877.

Server, once K uploads have arrived, with E_c = tau at a client's first upload:

    E_c(i) <- (1 - rho) E_c(i) + rho tau_i
    p_i = (E_c(i) K + 1) / sum_j (E_c(j) K + 1),    w_{t+1} = w_t - eta sum_i p_i g_i

Client: g_i = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient
of one mini-batch at w_o.

Symbols: eta server_lr, tau_i = t - o the age, E_c the mean age of client c, rho rate [A], c(i) the
client of upload i.

Deviations: E_c takes the age of an upload before the upload is weighed. The printed algorithm
leaves out the factor K, which its derivation has: ``scale_by_buffer=False``.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import SHARE, bounded
from fl_app.core.types import GlobalModel, Numbers, Updates
from fl_app.schedule import Buffered
from fl_app.strategy.weighted import AveragesVersions, WeightedGradients


@dataclass(kw_only=True)
class FedStaleWeight(WeightedGradients, AveragesVersions):
    """One step along the mean of K gradients, weighted by their clients' mean ages.

    Args:
        rate: rho, the share of an upload in its client's mean age.
        scale_by_buffer: whether a mean age is multiplied by K.
        averaging: how much more later versions count in their mean; None = the last one is tested.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fast = Update(1, 3, np.array([4, 0], np.float32), "pseudo", 10, 0.5)
        >>> slow = Update(2, 2, np.array([0, 4], np.float32), "pseudo", 30, 0.5)
        >>> FedStaleWeight().aggregate(model, [fast, slow]).tolist()  # weights 1/4 and 3/4
        [-1.0, -3.0]
    """

    schedule = Buffered(concurrency=10, buffer_size=10)
    looks_at = "every client's mean age, which the helper does not know"
    first_state = {"ages": {}}  # client -> E_c

    rate: float = bounded(0.1, SHARE, "it is a share")
    scale_by_buffer: bool = True

    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        ages: dict[int, float] = self.state["ages"]
        for update in updates:
            age = float(model.age(update))
            before = ages.get(update.client_id, age)
            ages[update.client_id] = (1 - self.rate) * before + self.rate * age
        factor = len(updates) if self.scale_by_buffer else 1
        weights = np.array([ages[update.client_id] * factor + 1 for update in updates])
        return weights / weights.sum()
