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
    d_ah = d + c .* (w_t - w_{t-1})
    V    = beta V + d_ah + beta (d_ah - d),    w_{t+1} = w_t - V

    c    = (lambda / eta) d .* d                              compensation_form="gradient"
    c    = lambda d .* d                                      "scaled"
    c    = lambda (sum_k p_k (w_{t-1} - u_k) .* (w_{t-1} - u_k))^2       "code"

The three forms are three readings of the compensation. "gradient" is equation 6 with true
gradients: equation 8 with g = d / eta, in which eta remains only in c. If the clients' rate falls
from version to version, eta is the rate of the current exchange, eta_0 lr_decay^t. "scaled" is
Section 6.1: clients send gradients that are scaled by eta, so the server takes eta = 1. "code" is
the authors' code: eta = 1, the mean of the clients' squares, and that squared once more.

Symbols: eta_0 server_lr (the clients' rate), lambda compensation, beta momentum, E_max
max_local_epochs.

Deviations: Algorithm 3 line 3 has the opposite sign and line 10 leaves out beta; equation 8 is
followed, unless ``nesterov="algorithm"``: V = beta V + d_ah + (d_ah - d). The first cycle has no
global model before w_0, so devices train twice from w_0. With the client's ``bootstrap="continue"``
they go on from their own model instead, as in the authors' code: the second upload, relative to
w_0, then holds both cycles, though the server has applied the first one. A device answers an order
with the training that it did before the order came, so each device has one order under way.

All N clients take part in every exchange, so all wait for a client that fails or is absent. If a
client leaves for good, a simulation ends ("nothing is under way") and real nodes wait. If a client
only fails, the run ends after 100 + 10 N attempts.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import BELOW_1, COUNT, NON_NEGATIVE, POSITIVE, SHARE, bounded, one_of
from fl_app.core.types import Config, GlobalModel, Update, Updates, Vector
from fl_app.core.vector import weighted_sum
from fl_app.core.weighting import by_examples
from fl_app.schedule import Schedule, synchronous
from fl_app.strategy import AsyncStrategy

SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass(kw_only=True)
class OverlapFedAvg(AsyncStrategy):
    """Averages displacements that are one version old, with compensation and Nesterov momentum.

    Args:
        server_lr: eta_0, the clients' rate; read by ``compensation_form="gradient"`` alone.
        lr_decay: factor of the clients' rate from version to version.
        compensation: lambda.
        momentum: beta.
        nesterov: factor of d_ah - d in the velocity, beta (``"equation"``) or 1 (``"algorithm"``).
        compensation_form: the reading of c, ``"gradient"``, ``"scaled"`` or ``"code"``.
        max_local_epochs: E_max, epochs of a cycle.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> small = Update(1, 2, np.array([2, 0], np.float32), "delta", 10, 0.5)
        >>> large = Update(2, 2, np.array([0, 2], np.float32), "delta", 30, 0.5)
        >>> OverlapFedAvg().aggregate(model, [small, large]).tolist()
        [0.5, 1.5]
    """

    schedule = synchronous(10)
    needs = "fl_app.algorithms.overlap_fedavg.trainer.OverlapTrainer"
    cites_forgotten = True  # displacements from the version before
    takes = ("delta", "pseudo")  # the base model is not kept
    looks_at = "uploads with another base version than that of their order"

    server_lr: float = bounded(0.05, POSITIVE, "the compensation is divided by it")
    lr_decay: float = bounded(1.0, SHARE, "rates would grow")
    compensation: float = bounded(0.0, NON_NEGATIVE, "delays would be amplified")
    momentum: float = bounded(0.0, BELOW_1, "steps would oscillate or grow for ever")
    nesterov: str = bounded(
        "equation", one_of("equation", "algorithm"), "no other velocity is known"
    )
    compensation_form: str = bounded(
        "gradient", one_of("gradient", "scaled", "code"), "the paper and its code have no other"
    )
    max_local_epochs: int = bounded(5, COUNT, "nothing would be trained")

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        size = getattr(schedule, "buffer_size", 1)
        if schedule != synchronous(size):
            raise ValueError(
                "OverlapFedAvg needs algorithm/schedule=full_participation: its displacements are "
                "one version old only if all clients report together"
            )

    def admit(self, model: GlobalModel, update: Update) -> str | None:
        if model.age(update) <= 1:
            return None
        return (
            f"the displacement is {model.age(update)} versions old and may be one: all clients "
            "must take part in every version (algorithm/schedule=full_participation)"
        )

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        return model.params, {"max_local_epochs": self.max_local_epochs}

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        weights = by_examples(updates)
        deltas = [model.displacement(update) for update in updates]
        previous: Vector = self.state.get("previous", model.params)
        mean = weighted_sum(weights, deltas)
        split = model.num_trainable
        d = -mean[:split]
        scale = self.compensation
        if self.compensation_form == "gradient":
            # If the rate is too small for a float, clients do not move and d is 0.
            scale /= max(self.server_lr * self.lr_decay**model.version, SMALLEST)
        squares = d * d
        if self.compensation_form == "code":
            squares = weighted_sum(weights, [delta[:split] ** 2 for delta in deltas]) ** 2
        ahead = d + np.float32(scale) * squares * (model.params - previous)[:split]
        beta = np.float32(self.momentum)
        factor = beta if self.nesterov == "equation" else np.float32(1)
        velocity = beta * self.state.get("velocity", np.float32(0)) + ahead + factor * (ahead - d)
        params = previous + mean  # buffers move by the displacement
        params[:split] = model.params[:split] - velocity
        self.state["previous"] = model.params.copy()
        self.state["velocity"] = velocity
        self.report["weight"] = weights.tolist()
        return params
