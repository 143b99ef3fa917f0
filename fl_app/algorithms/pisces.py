"""Pisces: clients are selected by utility, and the pace of aggregation bounds the staleness.

Jiang, Wang, Li, Li: "Pisces: Efficient Federated Learning via Guided Asynchronous Training", SoCC
2022, arXiv:2206.09264, in the form of its authors' code.

Server, when the schedule releases the buffer (`fl_app.schedule.guided.Guided`):

    w_{t+1} = w_t + eta sum_k (n_k / n) Delta_k,    n = sum_k n_k

Client: Delta_k = w_k - w_o after local SGD from w_o.

Symbols: eta server_lr (1 in the code), n_k number of examples.

Deviations: those of the schedule. The paper's text was not available as a whole.
"""

from fl_app.core.types import TRAINED, GlobalModel, Updates, Vector
from fl_app.core.weighting import by_examples
from fl_app.schedule.guided import Guided
from fl_app.strategy.weighted import Stepped


class Pisces(Stepped):
    """A server step along the mean displacement, weighted by examples.

    Args:
        server_lr: eta.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> small = Update(1, 3, np.array([4, 0], np.float32), "delta", 10, 0.5)
        >>> large = Update(2, 0, np.array([0, 4], np.float32), "delta", 30, 0.5)
        >>> Pisces().aggregate(model, [small, large]).tolist()
        [1.0, 3.0]
    """

    schedule = Guided()
    takes = TRAINED
    looks_at = "every client's loss, which decides how often it trains"

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        deltas = self.deltas(model, updates)
        return self.step(model, -self.average(model, by_examples(updates), deltas), self.server_lr)
