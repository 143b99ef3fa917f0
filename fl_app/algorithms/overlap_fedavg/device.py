"""Overlap-FedAvg's device: local training; `fl_app.algorithms.overlap_fedavg` has the equations."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fl_app.client import LocalTrainer, TrainingTask
from fl_app.client.backend import NUMPY, TORCH
from fl_app.core.types import Order, Upload, Vector


class OverlapTrainer(LocalTrainer):
    """Answers an order with the training from the previous order's model.

    On devices with a resident process that training runs before the order comes.

    Args:
        task: see `LocalTrainer`.
        settings: see `LocalTrainer`; `local_epochs` counts the epochs of a cycle.
    """

    backends: ClassVar = (TORCH, NUMPY)
    overlaps: ClassVar[bool] = True

    def __init__(self, task: TrainingTask, **settings: Any) -> None:
        super().__init__(task, **settings)
        self._latest: Order | None = None
        self._ahead: tuple[int, Vector, Upload] | None = None
        self._until: Callable[[], bool] | None = None

    def train(self, order: Order, out: Vector | None = None) -> Upload:
        version, state = int(order.config.get("version", 0)), order.state
        base, base_version = order.vector, version
        # A resumed server may not have reached that version again.
        if state and int(state["version"]) <= version:
            base, base_version = state["received"], int(state["version"])
        ahead, self._ahead = self._ahead, None
        if ahead and ahead[0] == order.client_id and np.array_equal(ahead[1], base):
            assert out is None, "worker processes do not work ahead"
            upload = ahead[2]
        else:
            upload = super().train(replace(order, vector=base, state={}), out)
        kept = {"received": order.vector.copy(), "version": np.array(version)}
        self._latest = replace(order, vector=kept["received"], state={})
        return replace(upload, base_version=base_version, state=kept)

    def work_ahead(self, until: Callable[[], bool]) -> None:
        if self._latest is None:
            return
        order, self._latest = self._latest, None
        version = int(order.config.get("version", 0)) + 1
        most = order.config.get("max_local_epochs", self.local_epochs)
        config = {**order.config, "version": version, "local_epochs": most}
        self._until = until
        try:
            # With the randomness of the next order, which this will answer.
            upload = super().train(replace(order, sequence=order.sequence + 1, config=config))
        finally:
            self._until = None
        self._ahead = order.client_id, order.vector, upload

    def should_stop(self, epoch: int) -> bool:
        del epoch
        return self._until is not None and self._until()
