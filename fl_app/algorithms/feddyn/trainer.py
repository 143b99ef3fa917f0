"""FedDyn's trainer: local training; `fl_app.algorithms.feddyn` has the equations."""

from dataclasses import replace

from torch import Tensor

from fl_app.client import LocalTrainer
from fl_app.client.flat import to_tensors
from fl_app.core.types import Config, Order, Rng, Upload


class FedDynTrainer(LocalTrainer):
    """Local SGD on the shifted loss; a client keeps h_i between its orders."""

    batches = True

    def begin(self, config: Config, rng: Rng) -> None:
        """Prepare the shift h_i - c and its weight alpha_i."""
        share = 1.0
        if "mean_examples" in config:
            share = self.task.train_indices(self.client_id).size / float(config["mean_examples"])
        self._alpha = float(config["regularisation"]) / share
        self._shift = [-w.detach() for w in self.model.params]
        if "memory" in self.state:
            memory = to_tensors(self.state["memory"], self._shift)
            self._shift = [h + shift for h, shift in zip(memory, self._shift, strict=True)]

    def correct(self, grad: list[Tensor], step: int) -> list[Tensor]:
        """g + alpha_i (h_i - c + w)."""
        return [
            g.add(shift + w, alpha=self._alpha)
            for g, shift, w in zip(grad, self._shift, self.model.params, strict=True)
        ]

    def finish(self, order: Order, upload: Upload) -> Upload:
        """h_i <- h_i + w_i - w_o."""
        split = self.model.layout.num_trainable
        memory = self.model.read()[:split] - order.vector[:split]
        if order.state:
            memory += order.state["memory"]
        return replace(upload, state={"memory": memory})
