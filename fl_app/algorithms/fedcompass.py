"""FedCompass: local steps by speed, so that groups of clients arrive together.

Li, Chaturvedi, He, Chen, Singh, Kindratenko, Huerta, Kim, Madduri: "FedCompass: Efficient
Cross-Silo Federated Learning on Heterogeneous Client Devices Using a Computing Power-Aware
Scheduler", ICLR 2024, arXiv:2309.14675, in the form of its authors' code.

Server, once a group has arrived (`fl_app.schedule.compass.Compass`), with K updates:

    w_{t+1} = w_t + alpha (1/N) sum_k s(t - o_k) Delta_k,    s(u) = (1 + u)^(-a)

Client: Delta_k = w_k - w_o after Q_k steps of local SGD from w_o, Q_k as the schedule says.

Symbols: alpha server_lr, a exponent, N num_clients.

Deviations: the printed algorithm was not available, only the authors' code. There the exponent of
s has the wrong sign, so that old updates count more. A late update is not replaced by a later one
of its client. Buffers such as BatchNorm's move by the weights instead of becoming the mean.
"""

from dataclasses import dataclass

from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, bounded
from fl_app.core.staleness import polynomials
from fl_app.core.types import TRAINED, GlobalModel, Updates, Vector
from fl_app.schedule.compass import Compass
from fl_app.strategy.weighted import Stepped


@dataclass(kw_only=True)
class FedCompass(Stepped):
    """A server step along displacements, each of 1 / N and discounted by its age.

    Args:
        server_lr: alpha.
        exponent: a.
        num_clients: N; None = the clients whose uploads were aggregated so far.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "delta", 10, 0.5)
        >>> stale = Update(2, 0, np.array([0, 2], np.float32), "delta", 30, 0.5)
        >>> FedCompass(server_lr=1.0, num_clients=4).aggregate(model, [fresh, stale]).tolist()
        [0.5, 0.25]
    """

    schedule = Compass()
    takes = TRAINED
    looks_at = "how long every client takes, which decides its steps"
    first_state = {"heard": set()}  # clients

    server_lr: float = bounded(0.9, POSITIVE, "the model would not move")
    exponent: float = bounded(0.5, NON_NEGATIVE, "staler updates would count more")
    num_clients: int | None = bounded(None, COUNT, "it divides every weight")

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        clients: set[int] = self.state["heard"]
        clients.update(update.client_id for update in updates)
        weights = polynomials(model, updates, self.exponent) / (self.num_clients or len(clients))
        deltas = self.deltas(model, updates)
        return self.step(model, -self.average(model, weights, deltas), self.server_lr)
