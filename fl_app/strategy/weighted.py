"""Algorithms that are nothing but the weights of a sum of gradients."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require_positive
from fl_app.core.rates import LinearDecay
from fl_app.core.types import GlobalModel, Update, Vector
from fl_app.schedule import Schedule, k_async
from fl_app.strategy.strategy import AsyncStrategy


class WeightedGradients(AsyncStrategy):
    """One step along a weighted sum of K gradients: w_{t+1} = w_t - eta sum_i p_i g_i.

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

    @abstractmethod
    def weights(self, model: GlobalModel, updates: Sequence[Update]) -> NDArray[np.float64]:
        """p_i of K >= 1 updates, shape ``(K,)``, finite."""

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        weights = self.weights(model, updates)
        direction = self.average(model, weights, self.gradients(model, updates))
        return self.step(model, direction, self.server_lr)
