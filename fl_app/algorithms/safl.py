"""SAFL: K-asynchronous aggregation weighted by examples over staleness.

The staleness-aware baseline of EAFL's comparison (`fl_app.algorithms.eafl`, eq. 1), in gradient
form.

Server, once K uploads have arrived:

    w_{t+1} = w_t - eta sum_i p_i g_i,    p_i = |D_i| / (tau_i sum_j |D_j|)

Client: g_i, the gradient of one mini-batch at w_o, or (w_o - w_i) / (sum of local learning rates).

or, with ``form="model"``, as EAFL prints it:

    w_{t+1} = (1 - alpha) w_t + alpha sum_i p_i w_i / sum_i p_i

Symbols: eta server_lr, |D_i| number of examples of client i, tau_i = t - o + 1 >= 1 the staleness,
alpha mixing [A].

Deviations: EAFL prints the mixture of models with a minus sign, which reverses the model, and with
weights that do not sum to 1, which shrink it. As in EAFL, the weights of the gradient form do not
sum to 1: the step shrinks with the staleness.
"""

from dataclasses import dataclass

from fl_app.core.hyper import POSITIVE, bounded
from fl_app.core.weighting import Weighting
from fl_app.strategy.weighted import WeightedGradientsOrModels


@dataclass(kw_only=True)
class SAFL(WeightedGradientsOrModels):
    """One step along the sum of K gradients, weighted by examples over staleness.

    Args:
        form: ``"gradient"``, or ``"model"``: models are mixed, and `server_lr` is not used.
        mixing: alpha of the model form.
        clip_norm: largest norm of an upload's trainable part in the gradient form; None = any.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "gradient", 10, 0.5)
        >>> stale = Update(2, 2, np.array([0, 2], np.float32), "gradient", 30, 0.5)
        >>> SAFL(server_lr=1.0).aggregate(model, [fresh, stale]).tolist()
        [-0.5, -0.75]
    """

    weighting = Weighting("polynomial", exponent=1.0, by_examples=True)

    server_lr: float = bounded(1.5, POSITIVE, "the model would not move")
