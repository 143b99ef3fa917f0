"""Overlap-FedAvg: clients train while models travel; the server compensates for the delay.

Zhou, Li, Ye, Guo, Wang, Liu, Lv: "Communication-efficient Federated Learning with Compensated
Overlap-FedAvg", IEEE TPDS 2022, arXiv:2012.06706, Algorithms 1 to 3, equation 8.

Device: at the end of a cycle it sends the model that it trained from the previous cycle's global
model, loads the newest global model that has arrived, and continues without waiting. So the uploads
u_k that reach the server at w_t were trained from w_{t-1}: all have age 1. A cycle has as many
local epochs as fit into the transfer, at least 1 and at most E_max. After E_max epochs the device
waits.

Server, once all N uploads are in, with p_k = n_k / n and momentum V = 0 at first:

    d    = sum_k p_k (w_{t-1} - u_k)
    d_ah = d + (lambda / eta) d .* d .* (w_t - w_{t-1})
    V    = beta V + d_ah + beta (d_ah - d),    w_{t+1} = w_t - V

which is equation 8 with g = d / eta: eta remains only in the compensation. If the clients' rate
falls from version to version, eta is the rate of the current exchange, eta = eta_0 lr_decay^t.

Symbols: eta_0 server_lr (the clients' rate), lambda compensation, beta momentum, E_max
max_local_epochs.

Deviations: Algorithm 3 line 3 has the opposite sign and line 10 leaves out beta; equation 8 is
followed. The first cycle has no global model before w_0, so devices train twice from w_0. A device
answers an order with the training that it did before the order came, so each device has one order
under way.

All N clients take part in every exchange, so all wait for a client that fails or is absent. If a
client leaves for good, a simulation ends ("nothing is under way") and real nodes wait. If a client
only fails, the run ends after 100 + 10 N attempts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fl_app.client import LocalTrainer, TrainingTask
from fl_app.core.hyper import POSITIVE, at_least, bounded, count, within
from fl_app.core.types import Config, GlobalModel, Order, Update, Upload, Vector
from fl_app.core.vector import weighted_sum
from fl_app.schedule import Schedule, synchronous
from fl_app.strategy import AsyncStrategy

SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass(kw_only=True)
class OverlapFedAvg(AsyncStrategy):
    """Averages displacements that are one version old, with compensation and Nesterov momentum.

    Args:
        server_lr: eta_0, the clients' rate.
        lr_decay: factor of the clients' rate from version to version.
        compensation: lambda.
        momentum: beta.
        max_local_epochs: E_max, epochs of a cycle.

    Example:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> small = Update(1, 2, np.array([2, 0], np.float32), "delta", 10, 0.5)
        >>> large = Update(2, 2, np.array([0, 2], np.float32), "delta", 30, 0.5)
        >>> OverlapFedAvg().aggregate(model, [small, large]).tolist()
        [0.5, 1.5]
    """

    schedule: ClassVar[Schedule] = synchronous(10)
    needs: ClassVar[str] = "fl_app.algorithms.overlap_fedavg.OverlapTrainer"
    cites_forgotten: ClassVar[bool] = True  # displacements from the version before
    takes: ClassVar[Sequence[str]] = ("delta", "pseudo")  # the base model is not kept

    server_lr: float = bounded(0.05, POSITIVE, "the compensation is divided by it")
    lr_decay: float = bounded(1.0, within("(0, 1]"), "rates would grow")
    compensation: float = bounded(0.0, at_least(0), "delays would be amplified")
    momentum: float = bounded(0.0, within("[0, 1)"), "steps would oscillate or grow for ever")
    max_local_epochs: int = bounded(5, count(), "nothing would be trained")

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        del num_versions
        size = getattr(schedule, "buffer_size", 1)
        if schedule != synchronous(size):
            raise ValueError(
                "OverlapFedAvg needs algorithm/schedule=full_participation (or synchronous): its "
                "displacements are one version old only if all that started report together"
            )

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        del client_id
        return model.params, {"max_local_epochs": self.max_local_epochs}

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        weights = np.array([update.num_examples for update in updates], float)
        weights /= weights.sum()
        deltas = [model.delta(update) for update in updates]
        previous: Vector = self.state.get("previous", model.params)
        mean = weighted_sum(weights, deltas)
        split = model.num_trainable
        d = -mean[:split]
        # If the rate is too small for a float, clients do not move and d is 0.
        eta = max(self.server_lr * self.lr_decay**model.version, SMALLEST)
        scale = np.float32(self.compensation / eta)
        ahead = d + scale * d * d * (model.params - previous)[:split]
        beta = np.float32(self.momentum)
        velocity = beta * self.state.get("velocity", np.float32(0)) + ahead + beta * (ahead - d)
        params = previous + mean  # buffers move by the displacement
        params[:split] = model.params[:split] - velocity
        self.state["previous"] = model.params.copy()
        self.state["velocity"] = velocity
        self.report["weight"] = weights.tolist()
        return params


class OverlapTrainer(LocalTrainer):
    """Answers an order with the training from the previous order's model.

    On devices with a resident process that training runs before the order comes.

    Args:
        task: see `LocalTrainer`.
        settings: see `LocalTrainer`; `local_epochs` counts the epochs of a cycle.
    """

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
