"""Federated averaging, in rounds.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, arXiv:1602.05629, Algorithm 1.

Server, once all K clients of a round have reported:

    w_{t+1} = sum_i (n_i / n) w_i,    n = sum_i n_i

Client: E epochs of mini-batch SGD from w_t (`fl_app.client.LocalTrainer`).

Symbols: w_i local model of client i, n_i its number of training examples.

Deviations: none.
"""

from fl_app.strategy.weighted import AveragedModels


class FedAvg(AveragedModels):
    """Average of the local models, weighted by the number of examples.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> small = Update(1, 3, np.array([4, 0], np.float32), "model", 10, 0.5)
        >>> large = Update(2, 3, np.array([0, 4], np.float32), "model", 30, 0.5)
        >>> FedAvg().aggregate(model, [small, large]).tolist()
        [1.0, 3.0]
    """
