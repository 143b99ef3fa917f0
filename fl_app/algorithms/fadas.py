"""FADAS: an adaptive server step along the mean of K displacements, smaller if one is very old.

Wang, Wang, Lu, Chen: "FADAS: Towards Federated Adaptive Asynchronous Optimization", ICML 2024,
arXiv:2407.18365, with its delay-adaptive rate.

Server, once K updates have arrived, with m = v = vhat = 0 at first:

    D = (1/K) sum_k Delta_k
    m <- b1 m + (1 - b1) D,    v <- b2 v + (1 - b2) D .* D,    vhat <- max(vhat, v)
    w_{t+1} = w_t + eta_t m / (sqrt(vhat) + eps)
    eta_t = eta                    if max_k tau_k <= tau_c, else
            min(eta, 1 / max tau)  delay_rule = "printed"
            eta / max tau          delay_rule = "ratio"

Client: Delta_k = w_k - w_o after local SGD from w_o.

Symbols: eta server_lr, about the length of an entry's step; b1 momentum, b2 second_momentum, eps
epsilon, tau_k = t - o the age, tau_c delay_threshold.

Deviations: none from the printed rule. It first acts if max tau is above 1 / eta. The authors' code
divides eta by max tau instead, which is ``delay_rule="ratio"``, and its vhat may start above 0. A
falling rate (lr_schedule) multiplies eta_t. Buffers such as BatchNorm's are the uploads' mean.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import BELOW_1, NON_NEGATIVE, POSITIVE, at_least, bounded, one_of
from fl_app.core.types import GlobalModel, Updates, Vector
from fl_app.core.weighting import Weighting
from fl_app.schedule import Buffered
from fl_app.strategy.weighted import Stepped


@dataclass(kw_only=True)
class FADAS(Stepped):
    """AMSGrad on the mean of K displacements; the rate falls with the greatest age.

    The server keeps three vectors beside the model: 12 d bytes.

    Args:
        momentum: b1.
        second_momentum: b2.
        epsilon: eps, added to the root of the second moment.
        delay_adaptive: False = the rate does not depend on ages.
        delay_threshold: tau_c, the greatest age at which the rate is eta, versions.
        delay_rule: ``"printed"`` (min(eta, 1 / max tau)) or ``"ratio"`` (eta / max tau).

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> update = Update(1, 3, np.array([2, -4], np.float32), "delta", 10, 0.5)
        >>> FADAS(server_lr=0.1).aggregate(model, [update]).round(3)  # 0.1 D / sqrt(0.01 D^2) = 1
        array([ 0.1, -0.1], dtype=float32)
    """

    schedule = Buffered(concurrency=10, buffer_size=10)
    linear_in = ("delta",)

    server_lr: float = bounded(0.01, POSITIVE, "the model would not move")
    momentum: float = bounded(0.9, BELOW_1, "nothing new would be learned")
    second_momentum: float = bounded(0.99, BELOW_1, "every step would be infinite")
    epsilon: float = bounded(1e-8, at_least(1e-38), "an entry that never moved would be 0 / 0")
    delay_adaptive: bool = True
    delay_threshold: float = bounded(1.0, NON_NEGATIVE, "ages start at 0")
    delay_rule: str = bounded("printed", one_of("printed", "ratio"), "no other rule is known")

    def rate(self, greatest_age: int) -> float:
        """eta_t of uploads of which the oldest has this age."""
        if not self.delay_adaptive or greatest_age <= self.delay_threshold:
            return self.server_lr
        if self.delay_rule == "ratio":
            return self.server_lr / greatest_age
        return min(self.server_lr, 1 / greatest_age)

    def public_weights(self) -> Weighting:
        return Weighting()

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        split = model.num_trainable
        deltas = self.deltas(model, updates)
        mean = self.average(model, [1 / len(updates)] * len(updates), deltas)
        d, b1, b2 = mean[:split], np.float32(self.momentum), np.float32(self.second_momentum)
        # 1 - b2 in float32 would have few digits where b2 is near 1.
        new1, new2 = np.float32(1 - self.momentum), np.float32(1 - self.second_momentum)
        zeros = np.zeros_like(d)
        first = b1 * self.state.get("first", zeros) + new1 * d
        second = b2 * self.state.get("second", zeros) + new2 * d * d
        largest = np.maximum(self.state.get("largest", zeros), second)
        self.state = {"first": first, "second": second, "largest": largest}
        rate = self.rate(max(model.age(update) for update in updates))
        self.report["rate"] = rate
        direction = -mean
        direction[:split] = -first / (np.sqrt(largest) + np.float32(self.epsilon))
        return self.step(model, direction, rate)
