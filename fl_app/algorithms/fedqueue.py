"""FedQueue: rounds over batch queues, with work and admission by the expected wait.

Li, Dey, Li, Raghavan, Madduri, Kim: "FedQueue: Queue-Aware Federated Learning for Cross-Facility
HPC Training", arXiv:2605.02125 (2026), in the form of its authors' code (APPFL).

Server, when the schedule ends a round (`fl_app.schedule.queue_aware.QueueAware`), with K updates:

    w_{t+1} = sum_k p_k w_k,    p_k = H_k s(t - o_k) / sum_j H_j s(t - o_j),    s(u) = 1 / (1 + b u)

Client: H_k steps of local SGD from w_o, at eta min_j H_j / H_k.

Symbols: b staleness_rate (0 in the code: s = 1), H_k the local steps of the order (1 if the
schedule asks for none), eta client.local_lr.

Deviations: the paper's text was not available as a whole, only the authors' code. Queues of
simulated devices are `devices/network=queue`. A client that is gone is not waited for.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import NON_NEGATIVE, bounded
from fl_app.core.types import GlobalModel, Numbers, Updates
from fl_app.schedule.queue_aware import QueueAware
from fl_app.strategy.weighted import AveragedModels


@dataclass(kw_only=True)
class FedQueue(AveragedModels):
    """The mean of the local models, weighted by local steps and age.

    Args:
        staleness_rate: b.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> long = Update(1, 3, np.array([4, 0], np.float32), "model", 10, 0.5, steps=30)
        >>> short = Update(2, 3, np.array([0, 4], np.float32), "model", 10, 0.5, steps=10)
        >>> FedQueue().aggregate(model, [long, short]).tolist()
        [3.0, 1.0]
    """

    schedule = QueueAware()
    looks_at = "how long every client takes, which decides its steps"

    staleness_rate: float = bounded(0.0, NON_NEGATIVE, "staler updates would count more")

    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        weights = np.array(
            [max(u.steps, 1) / (1 + self.staleness_rate * model.age(u)) for u in updates]
        )
        return weights / weights.sum()
