"""FedQS's trainer: local training; `fl_app.algorithms.fedqs` has the equations."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from fl_app.algorithms.fedqs import ANGLE, FEEDBACK, MEAN_ANGLE, PACE
from fl_app.client import LocalTrainer
from fl_app.core.hyper import NON_NEGATIVE, bounded, within
from fl_app.core.types import Config, Order, Rng, Upload
from fl_app.core.vector import norm

SLOWEST = 9.0  # the greatest nbar / n_i that counts
MAX_MOMENTUM = 0.4  # above m_0
MIN_RATE, MAX_RATE = 0.01, 2.0  # rates that changed, over local_lr
UNEQUAL = 0.3  # accuracies of classes


@dataclass(kw_only=True, eq=False, repr=False)
class FedQSTrainer(LocalTrainer):
    """Local SGD whose rate and momentum follow from the client's speed and direction.

    A client keeps between its orders eta_i, and the trainable parts of the model that it received
    last and of its displacement. `momentum` is that of clients without an angle.

    Args:
        task: data, model and loss of every client.
        rate_step: a, by which a rate changes, >= 0.
        min_momentum: m_0.
        momentum_slope: k.

    Raises:
        ValueError: a value is out of its bounds.
    """

    rate_step: float = bounded(0.002, NON_NEGATIVE, "slow clients would learn more slowly")
    min_momentum: float = bounded(0.1, within("[0, 0.6)"), "steps would grow for ever")
    momentum_slope: float = bounded(2.0, NON_NEGATIVE, "an aligned client would be slowed down")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._plain, self._lr = self.momentum, self.local_lr

    def rate(self, config: Config) -> float:
        """The client's own rate in place of `local_lr`."""
        return super().rate(config) * self._lr / self.local_lr

    def begin(self, config: Config, rng: Rng) -> None:
        """Set rate and momentum by the client's kind."""
        self._lr = float(self.state.get("lr", self.local_lr))
        self.momentum, self._feedback = self._plain, False
        self._angle = angle = self._angle_of_last()
        if angle > 0 and PACE in config:
            pace, mean_angle = float(config[PACE]), float(config[MEAN_ANGLE])
            fast, turned = pace > 1, angle > mean_angle
            self._feedback = turned and (fast or self._is_unequal())
            if not (fast and turned):
                step = self.rate_step * min(1 / pace, SLOWEST)
                lr = (self._lr - step if fast else self._lr + step) / self.local_lr
                self._lr = min(max(lr, MIN_RATE), MAX_RATE) * self.local_lr
            boost = min(max(self.momentum_slope * (mean_angle / angle - 1), 0.0), MAX_MOMENTUM)
            self.momentum = 0.0 if self._feedback else self.min_momentum + boost

    def finish(self, order: Order, upload: Upload) -> Upload:
        """Report angle and feedback, and keep what the next order's angle is computed from."""
        size = self.model.layout.num_trainable
        received = order.vector[:size].copy()
        moved = self.model.read()[:size] - received
        state = {"received": received, "displacement": moved, "lr": np.array(self._lr)}
        metrics = {ANGLE: self._angle, FEEDBACK: float(self._feedback)}
        return replace(upload, state=state, metrics={**upload.metrics, **metrics})

    def _angle_of_last(self) -> float:
        """theta_i in degrees; 0 = there is none."""
        if "received" not in self.state:
            return 0.0
        own = self.state["displacement"]
        moved = self.model.read()[: own.size] - self.state["received"]
        product = norm(own) * norm(moved)
        cosine = float(np.dot(own, moved)) / product if 0 < product < math.inf else 1.0
        return math.degrees(math.acos(min(max(cosine, -1.0), 1.0)))

    def _is_unequal(self) -> bool:
        """Whether the received model knows some of the client's classes much better than others."""
        inputs, target = self.examples(self.task.evaluation_indices(self.client_id))
        if target.ndim > 1 or target.is_floating_point():
            return True
        self.model.module.eval()
        with torch.no_grad():
            hits = (self.model.module(inputs).argmax(1) == target).float()
        self.model.module.train()
        accuracies = [hits[target == label].mean().item() for label in set(target.tolist())]
        return max(accuracies, default=1.0) - min(accuracies, default=0.0) >= UNEQUAL
