"""SAFL: K-asynchronous aggregation weighted by the clients' data over their staleness.

The staleness-aware baseline of EAFL's comparison (`fl_app.algorithms.eafl`, eq. 1), in gradient
form.

Server, once K uploads have arrived:

    w_{t+1} = w_t - eta sum_i p_i g_i,    p_i = |D_i| / (tau_i sum_j |D_j|)

Client: g_i, the gradient of one mini-batch at w_o, or (w_o - w_i) / (sum of local learning rates).

Symbols: eta server_lr, |D_i| number of examples of client i, tau_i = t - o + 1 >= 1 the staleness.

Deviations: EAFL prints it as a mixture of models, with a minus sign that turns the model round.
As there, the weights do not sum to 1: the step shrinks with the staleness.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fl_app.core.errors import require_positive
from fl_app.core.rates import LinearDecay
from fl_app.core.staleness import polynomial
from fl_app.core.types import GlobalModel, Update, Vector
from fl_app.schedule import Schedule, k_async
from fl_app.strategy import AsyncStrategy


class SAFL(AsyncStrategy):
    """One step along the sum of K gradients, weighted by examples over staleness.

    Args:
        server_lr: eta > 0.
        clip_norm: longest trainable part of an upload, > 0; None = any.
        lr_schedule: of eta; None = constant.

    Raises:
        ValueError: a value is out of its bounds.
    """

    schedule: ClassVar[Schedule] = k_async(10)

    def __init__(
        self,
        *,
        server_lr: float = 1.0,
        clip_norm: float | None = None,
        lr_schedule: LinearDecay | None = None,
    ) -> None:
        super().__init__(clip_norm=clip_norm, lr_schedule=lr_schedule)
        require_positive("strategy.server_lr", server_lr, "the model would not move")
        self.server_lr = server_lr

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        examples = np.array([update.num_examples for update in updates], np.float64)
        inverse = [polynomial(model.age(update), 1.0) for update in updates]
        weights = examples / examples.sum() * inverse
        direction = self.average(model, weights, self.gradients(model, updates))
        return self.step(model, direction, self.server_lr)
