"""ASO-Fed's device: local training; `fl_app.algorithms.aso_fed` has the equations."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fl_app.client import LocalTrainer
from fl_app.client.backend import NUMPY, TORCH
from fl_app.client.operations import Arrays
from fl_app.core.types import Config, Order, Upload


class ASOFedTrainer(LocalTrainer):
    """Local SGD along z; a client keeps h and v between its orders."""

    backends: ClassVar = (TORCH, NUMPY)
    batches: ClassVar = True

    def begin(self, config: Config, rng: np.random.Generator) -> None:
        """Restore h and v of the client's last order."""
        del rng
        self._regularisation = float(config["regularisation"])
        self._decay = float(config["decay"])
        self._received = self.operations.copies(self.model.params)
        self._h, self._v = (
            self._like_params(self.state.get(name)) or self.operations.zeros(self._received)
            for name in ("h", "v")
        )

    def correct(self, grad: Arrays, step: int) -> Arrays:
        """z = g - v + h. g includes the pull towards the received model."""
        del step
        ops = self.operations
        pull = ops.subtract(self.model.params, self._received)
        g = ops.add(grad, pull, self._regularisation)
        z = ops.add(ops.subtract(g, self._v), self._h)
        h = ops.scale(self._h, self._decay)
        self._h, self._v = ops.add(h, self._v, 1.0 - self._decay), g
        return z

    def finish(self, order: Order, upload: Upload) -> Upload:
        """Keep h and v."""
        del order
        h, v = self.operations.flat(self._h), self.operations.flat(self._v)
        return replace(upload, state={"h": h, "v": v})
