"""FedDyn's device: local training; `fl_app.algorithms.feddyn` has the equations."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fl_app.client import LocalTrainer
from fl_app.client.backend import NUMPY, TORCH
from fl_app.client.operations import Arrays
from fl_app.core.types import Config, Order, Upload


class FedDynTrainer(LocalTrainer):
    """Local SGD on the shifted loss; a client keeps h_i between its orders."""

    backends: ClassVar = (TORCH, NUMPY)
    batches: ClassVar = True

    def begin(self, config: Config, rng: np.random.Generator) -> None:
        """Prepare the shift h_i - c and its weight alpha_i."""
        del rng
        share = 1.0
        if "mean_examples" in config:
            share = self.task.train_indices(self.client_id).size / float(config["mean_examples"])
        self._alpha = float(config["regularisation"]) / share
        self._shift = [-p for p in self.operations.copies(self.model.params)]
        if (memory := self._like_params(self.state.get("memory"))) is not None:
            self._shift = self.operations.add(self._shift, memory)

    def correct(self, grad: Arrays, step: int) -> Arrays:
        """g + alpha_i (h_i - c + w)."""
        del step
        pull = self.operations.add(self._shift, self.model.params)
        return self.operations.add(grad, pull, self._alpha)

    def finish(self, order: Order, upload: Upload) -> Upload:
        """h_i <- h_i + w_i - w_o."""
        split = self.model.layout.num_trainable
        memory = self.model.read()[:split] - order.vector[:split]
        if order.state:
            memory += order.state["memory"]
        return replace(upload, state={"memory": memory})
