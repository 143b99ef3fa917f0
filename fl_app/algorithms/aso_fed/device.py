"""ASO-Fed's device: local training; `fl_app.algorithms.aso_fed` has the equations."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fl_app.client import LocalTrainer
from fl_app.core.types import Config, Order, Upload, Vector


class ASOFedTrainer(LocalTrainer):
    """Local SGD along z; a client keeps h and v between its orders."""

    def begin(self, config: Config, rng: np.random.Generator) -> None:
        """Restore h and v of the client's last order."""
        del rng
        self._regularisation = float(config["regularisation"])
        self._decay = float(config["decay"])
        self._received = [p.detach().clone() for p in self.model.params]
        self._h, self._v = (
            self._like_params(self.state.get(name)) or [torch.zeros_like(p) for p in self._received]
            for name in ("h", "v")
        )

    def correct(self, grad: list[Tensor], step: int) -> list[Tensor]:
        """z = g - v + h. g includes the pull towards the received model."""
        del step
        params: list[Tensor] = self.model.params  # type: ignore[assignment]
        pull = list(torch._foreach_sub(params, self._received))
        g = list(torch._foreach_add(grad, pull, alpha=self._regularisation))
        z = list(torch._foreach_sub(g, self._v))
        torch._foreach_add_(z, self._h)
        h = list(torch._foreach_mul(self._h, self._decay))
        torch._foreach_add_(h, self._v, alpha=1.0 - self._decay)
        self._h, self._v = h, g
        return z

    def train(self, order: Order, out: Vector | None = None) -> Upload:
        upload = super().train(order, out)
        return replace(upload, state={"h": _flat(self._h), "v": _flat(self._v)})


def _flat(tensors: list[Tensor]) -> Vector:
    vector: Vector = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu().numpy()
    return vector
