"""Overlap-FedAvg: training goes on while models travel; compensation and momentum make up for it.

Zhou, Li, Ye, Guo, Wang, Liu, Lv: "Communication-efficient Federated Learning with Compensated
Overlap-FedAvg", IEEE TPDS 2022, arXiv:2012.06706, Algorithms 1 to 3, equation 8.

Device: at the end of a cycle it sends what it trained from the global model of the cycle before,
loads the newest one that has come, and trains on without waiting. So the uploads u_k that meet the
server at w_t were trained from w_{t-1}: the age of all is 1. A cycle has as many local epochs as
fit into the transfer, at least 1 and at most E_max (beyond that the device waits).

Server, once all N uploads are in, with p_k = n_k / n and momentum V = 0 at first:

    d    = sum_k p_k (w_{t-1} - u_k)
    d_ah = d + (lambda / eta) d .* d .* (w_t - w_{t-1})
    V    = beta V + d_ah + beta (d_ah - d),    w_{t+1} = w_t - V

which is equation 8 with g = d / eta: eta remains in the compensation alone. Where the clients' rate
falls from version to version it is that of the current exchange, eta = eta_0 lr_decay^t.

Symbols: eta_0 server_lr (the clients' rate), lambda compensation, beta momentum, E_max
max_local_epochs.

Deviations: Algorithm 3 line 3 takes the difference the other way round and line 10 leaves beta out;
equation 8 is followed. The first cycle has no global model before w_0, from which is trained twice.
An order's answer is what the device trained before it came, so one order a device is under way.

All N take part in every exchange, so each waits for whoever fails or is gone for a while. One that
leaves for good ends a simulation ("nothing is under way"), and real nodes wait for it; one that
does nothing but fail ends the run after 100 + 10 N attempts.
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
        server_lr: eta_0 > 0, the clients' rate.
        lr_decay: in (0, 1], what the clients multiply it by for every version.
        compensation: lambda >= 0.
        momentum: beta in [0, 1).
        max_local_epochs: E_max >= 1, of a cycle.

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
    takes: ClassVar[Sequence[str]] = ("delta", "pseudo")  # whose model is known no more

    server_lr: float = bounded(0.05, POSITIVE, "the compensation would have no measure")
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
                "displacements are one version old only where all that started report together"
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
        # At rates so small that floats do not hold them nobody moves, and d is 0.
        eta = max(self.server_lr * self.lr_decay**model.version, SMALLEST)
        scale = np.float32(self.compensation / eta)
        ahead = d + scale * d * d * (model.params - previous)[:split]
        beta = np.float32(self.momentum)
        velocity = beta * self.state.get("velocity", np.float32(0)) + ahead + beta * (ahead - d)
        params = previous + mean  # where the uploads are: right for buffers
        params[:split] = model.params[:split] - velocity
        self.state["previous"] = model.params.copy()
        self.state["velocity"] = velocity
        self.report["weight"] = weights.tolist()
        return params


class OverlapTrainer(LocalTrainer):
    """Answers an order with what it trained from the model of the order before.

    Where it is given the time, on devices with a resident process, it did so before the order came.

    Args:
        task: see `LocalTrainer`.
        settings: see `LocalTrainer`; `local_epochs` is the number of a cycle.
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
        # A server that went on from a checkpoint may not have come to that version again.
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
            # As the next order's, which it will be the answer to.
            upload = super().train(replace(order, sequence=order.sequence + 1, config=config))
        finally:
            self._until = None
        self._ahead = order.client_id, order.vector, upload

    def should_stop(self, epoch: int) -> bool:
        del epoch
        return self._until is not None and self._until()
