"""SCAFFOLD's trainer: local training; `fl_app.algorithms.scaffold` has the equations."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from fl_app.algorithms.scaffold import CONTROL
from fl_app.client import LocalTrainer
from fl_app.client.flat import to_tensors
from fl_app.core.types import Config, Order, Rng, Upload


class SCAFFOLDTrainer(LocalTrainer):
    """Local SGD along corrected gradients; a client keeps c_i between its orders.

    `upload` is not ``"gradient"``.

    Raises:
        ValueError: a value is out of its bounds.
    """

    batches = True

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = "the control variate is estimated from local steps"
        self._require(self.upload != "gradient", "upload", "model, delta or pseudo", reason)

    def begin(self, config: Config, rng: Rng) -> None:
        """Prepare the correction, c - c_i."""
        correction = self.extra[CONTROL][: self.model.layout.num_trainable]
        if CONTROL in self.state:
            correction = correction - self.state[CONTROL]
        self._correction = to_tensors(correction, self.model.params)

    def correct(self, grad: list[Tensor], step: int) -> list[Tensor]:
        """g_i - c_i + c."""
        return [g + c for g, c in zip(grad, self._correction, strict=True)]

    def finish(self, order: Order, upload: Upload) -> Upload:
        """c_i <- c_i + (w_o - w_i) / (sum of rates) - c, and what it changes by."""
        split = self.model.layout.num_trainable
        change = np.zeros_like(order.vector)
        np.subtract(order.vector[:split], self.model.read()[:split], out=change[:split])
        change[:split] /= np.float32(upload.rate_sum)
        change[:split] -= order.extra[CONTROL][:split]
        own = change[:split] + order.state.get(CONTROL, np.float32(0))
        return replace(upload, state={CONTROL: own}, extra={CONTROL: change})
