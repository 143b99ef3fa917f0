"""MOON: clients learn features close to the global model's and far from their previous ones.

Li, He, Song: "Model-Contrastive Federated Learning", CVPR 2021, arXiv:2103.16257, Algorithm 1.

Server, once all K clients of a round have reported:

    w_{t+1} = sum_i (n_i / n) w_i,    n = sum_i n_i

Client: E epochs of mini-batch SGD from w_t on the task's loss and, over the examples of a batch,

    mu mean -log( exp(cos(z, z_g) / T) / (exp(cos(z, z_g) / T) + exp(cos(z, z_p) / T)) )

where z are the features under the model in training, z_g under w_t, and z_p under the model with
which this client's previous order ended (w_t at first, so the term begins at mu log 2).

Symbols: mu contrast and T temperature, which every order carries; n_i number of training examples
of client i.

Deviations: features are the inputs of the model's last linear layer. The authors put a projection
head of two layers before it, but then the model would differ from that of other algorithms. w_t and
the previous model are frozen completely: no dropout, batch normalisation by running statistics.
With a single local step the term has no effect, because z is z_g.
"""

from dataclasses import dataclass

from fl_app.core.hyper import NON_NEGATIVE, POSITIVE, bounded
from fl_app.core.types import Config, GlobalModel, Vector
from fl_app.strategy.weighted import AveragedModels


@dataclass(kw_only=True)
class MOON(AveragedModels):
    """Average of the local models, weighted by the number of examples.

    Args:
        contrast: mu, the weight of the clients' term; 0 = FedAvg.
        temperature: T of the clients' term.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> small = Update(1, 3, np.array([4, 0], np.float32), "model", 10, 0.5)
        >>> large = Update(2, 3, np.array([0, 4], np.float32), "model", 30, 0.5)
        >>> MOON().aggregate(model, [small, large]).tolist()
        [1.0, 3.0]
        >>> MOON().dispatch(model, client_id=1)[1]
        {'contrast': 5.0, 'temperature': 0.5}
    """

    needs = "fl_app.algorithms.moon.trainer.MOONTrainer"

    contrast: float = bounded(5.0, NON_NEGATIVE, "features would flee the global model's")
    temperature: float = bounded(0.5, POSITIVE, "similarities are divided by it")

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        return model.params, {"contrast": self.contrast, "temperature": self.temperature}
