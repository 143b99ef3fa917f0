"""Overlap-FedAvg's trainer; `fl_app.algorithms.overlap_fedavg` has the equations."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fl_app.client import LocalTrainer
from fl_app.core.hyper import bounded, one_of
from fl_app.core.types import Order, Upload, Vector


@dataclass(kw_only=True, eq=False, repr=False)
class OverlapTrainer(LocalTrainer):
    """Answers an order with the training from the previous order's model.

    On warm nodes (`fl_app.node.warm`) that training runs before the order comes.

    Args:
        task: see `LocalTrainer`.
        bootstrap: what the second cycle starts from, when no global model but the first has
            arrived: that model (``"w0"``), or the client's own (``"continue"``).
        local_epochs: epochs of a cycle.

    Raises:
        ValueError: a value is out of its bounds.
    """

    overlaps = True
    batches = True

    bootstrap: str = bounded(
        "w0", one_of("w0", "continue"), "the second cycle can start from nothing else"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = "it trains for orders that it has not received, and private parameters would be "
        reason += "ahead of their client's state"
        self._require(not self.private, "private", "null with OverlapTrainer", reason)
        self._latest: Order | None = None
        self._ahead: tuple[int, Vector, Upload] | None = None
        self._until: Callable[[], bool] | None = None

    def basis(self, order: Order) -> Order:
        vector, _, _ = self._base(order)
        return replace(order, vector=vector, state={})

    def finish(self, order: Order, upload: Upload) -> Upload:
        _, base_version, moved = self._base(order)
        state = {"received": order.vector.copy(), "version": np.array(_version(order))}
        latest: Vector = state["received"]
        if self._is_first(order) and self.bootstrap == "continue":
            state["moved"] = upload.vector * self._factors(upload)
            latest = latest + state["moved"]
        if moved is not None:
            np.add(upload.vector, moved / self._factors(upload), out=upload.vector)
        self._latest = replace(order, vector=latest, state={})
        return replace(upload, base_version=base_version, state=state)

    def _base(self, order: Order) -> tuple[Vector, int, Vector | None]:
        """The model that an order is trained from, its version, and the client's own move since."""
        if self._is_first(order):
            return order.vector, _version(order), None
        state = order.state
        base, moved = state["received"], state.get("moved")
        return base if moved is None else base + moved, int(state["version"]), moved

    def _is_first(self, order: Order) -> bool:
        # A resumed server may not have reached the version of the client's state again.
        return not order.state or int(order.state["version"]) > _version(order)

    def _train(self, order: Order) -> Upload:
        ahead, self._ahead = self._ahead, None
        if ahead and ahead[0] == order.client_id and np.array_equal(ahead[1], order.vector):
            return ahead[2]
        return super()._train(order)

    def _factors(self, upload: Upload) -> Vector:
        """Factors that turn an upload's entries into a displacement, shape ``(d,)``."""
        if upload.kind != "pseudo":
            return np.ones(upload.vector.size, np.float32)
        factors = np.full(upload.vector.size, -1, np.float32)
        factors[: self.model.layout.num_trainable] = -upload.rate_sum
        return factors

    def work_ahead(self, until: Callable[[], bool]) -> None:
        if self._latest is None:
            return
        order, self._latest = self._latest, None
        version = _version(order) + 1
        max_epochs = order.config.get("max_local_epochs", self.local_epochs)
        config = {**order.config, "version": version, "local_epochs": max_epochs}
        self._until = until
        try:
            # With the randomness of the next order, which this will answer.
            upload = super()._train(replace(order, sequence=order.sequence + 1, config=config))
        finally:
            self._until = None
        self._ahead = order.client_id, order.vector, upload

    def should_stop(self, epoch: int) -> bool:
        return self._until is not None and self._until()


def _version(order: Order) -> int:
    return int(order.config.get("version", 0))
