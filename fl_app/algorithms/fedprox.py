"""FedProx: federated averaging with a penalty on the distance to the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks",
MLSys 2020, arXiv:1812.06127, Algorithm 2.

Server, once all K clients of a round have reported:

    w_{t+1} = sum_i (n_i / n) w_i,    n = sum_i n_i

Client: E epochs of mini-batch SGD from w_t (`fl_app.client.LocalTrainer`) on

    f_i(w) + (mu / 2) ||w - w_t||^2

Symbols: mu proximal, which every order carries as ``proximal-mu``, Flower's own name for it; n_i
number of training examples of client i.

Deviations: a cohort is drawn uniformly and averaged by examples, as in FedAvg. The paper draws by
examples and averages uniformly. With a single local step mu has no effect.
"""

from dataclasses import dataclass

from fl_app.core.hyper import NON_NEGATIVE, bounded
from fl_app.core.types import Config, GlobalModel, Vector
from fl_app.strategy.weighted import AveragedModels


@dataclass(kw_only=True)
class FedProx(AveragedModels):
    """Average of the local models, weighted by the number of examples.

    Args:
        proximal: mu; 0 = FedAvg.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> small = Update(1, 3, np.array([4, 0], np.float32), "model", 10, 0.5)
        >>> large = Update(2, 3, np.array([0, 4], np.float32), "model", 30, 0.5)
        >>> FedProx().aggregate(model, [small, large]).tolist()
        [1.0, 3.0]
        >>> FedProx(proximal=0.1).dispatch(model, client_id=1)[1]
        {'proximal-mu': 0.1}
    """

    proximal: float = bounded(0.01, NON_NEGATIVE, "training would flee the received model")

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        return model.params, {"proximal-mu": self.proximal}
