"""ASO-Fed's trainer: local training; `fl_app.algorithms.aso_fed` has the equations."""

from dataclasses import replace

import torch
from torch import Tensor

from fl_app.client import LocalTrainer
from fl_app.client.flat import to_tensors, to_vector
from fl_app.core.types import Config, Order, Rng, Upload


class ASOFedTrainer(LocalTrainer):
    """Local SGD along z; a client keeps h and v between its orders."""

    batches = True

    def begin(self, config: Config, rng: Rng) -> None:
        """Restore h and v of the client's last order."""
        self._regularisation = float(config["regularisation"])
        self._decay = float(config["decay"])
        params = self.model.params
        self._received = [w.detach().clone() for w in params]
        self._h, self._v = (
            to_tensors(self.state[name], params)
            if name in self.state
            else [torch.zeros_like(w) for w in params]
            for name in ("h", "v")
        )

    def correct(self, grad: list[Tensor], step: int) -> list[Tensor]:
        """z = g - v + h. g includes the pull towards the received model."""
        pulled = [
            g.add(w - w_o, alpha=self._regularisation)
            for g, w, w_o in zip(grad, self.model.params, self._received, strict=True)
        ]
        z = [g - v + h for g, v, h in zip(pulled, self._v, self._h, strict=True)]
        self._h = [
            (self._decay * h).add(v, alpha=1.0 - self._decay)
            for h, v in zip(self._h, self._v, strict=True)
        ]
        self._v = pulled
        return z

    def finish(self, order: Order, upload: Upload) -> Upload:
        """Keep h and v."""
        return replace(upload, state={"h": to_vector(self._h), "v": to_vector(self._v)})
