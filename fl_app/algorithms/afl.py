"""AFL: K-asynchronous aggregation weighted by the clients' numbers of examples, at any age.

The semi-asynchronous baseline without staleness weights of EAFL's comparison
(`fl_app.algorithms.eafl`), in gradient form.

Server, once K uploads have arrived:

    w_{t+1} = w_t - eta sum_i p_i g_i,    p_i = |D_i| / sum_j |D_j|

Client: g_i, the gradient of one mini-batch at w_o, or (w_o - w_i) / (sum of local learning rates).

or, with ``form="model"``, as EAFL prints it:

    w_{t+1} = (1 - alpha) w_t + alpha sum_i p_i w_i

Symbols: eta server_lr, |D_i| number of examples of client i, alpha mixing [A].

Deviations: EAFL prints the mixture of models with a minus sign, which reverses the model.
"""

from dataclasses import dataclass

from fl_app.core.hyper import POSITIVE, bounded
from fl_app.core.weighting import Weighting
from fl_app.strategy.weighted import WeightedGradientsOrModels


@dataclass(kw_only=True)
class AFL(WeightedGradientsOrModels):
    """One step along the mean of K gradients, weighted by numbers of examples.

    Args:
        form: ``"gradient"``, or ``"model"``: models are mixed, and `server_lr` is not used.
        mixing: alpha of the model form.
        clip_norm: largest norm of an upload's trainable part in the gradient form; None = any.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "gradient", 10, 0.5)
        >>> stale = Update(2, 2, np.array([0, 2], np.float32), "gradient", 30, 0.5)
        >>> AFL(server_lr=1.0).aggregate(model, [fresh, stale]).tolist()
        [-0.5, -1.5]
    """

    weighting = Weighting(by_examples=True)

    server_lr: float = bounded(0.2, POSITIVE, "the model would not move")
