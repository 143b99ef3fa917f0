"""GSGM: rounds that use each client once, and a global momentum from round to round.

Li, Li, Wang, Li, Zhou, Guo, Li: "Gradient Scheduling with Global Momentum for Non-IID Data
Distributed Asynchronous Training", arXiv:1902.07848 (withdrawn); in the K-asynchronous form
of WKAFL's comparison (arXiv:2203.01214).

Server, once K uploads have arrived from clients that this round has not used yet:

    gm = (1/K) sum_i g_i,    gu = gm + alpha M,    w_{t+1} = w_t - eta gu
    acc <- acc + gu K / P
    M <- acc,  acc <- 0      at the end of a round, when all P clients were used

Client: g_i, the gradient of one mini-batch at w_o, or (w_o - w_i) / (sum of local learning rates).

Symbols: eta server_lr, alpha momentum. P is counted, not configured.

Deviations: WKAFL's published code accumulates gu / P, whose sum is 1 / K of the mean
(``accumulate="code"``), and applies gm in place of gu, so that its momentum has no effect
(``apply_momentum=False``). Neither is followed by default. The last aggregation of a round has the
k <= K remaining clients and counts k / P. The schedule decides which uploads are taken
(`fl_app.schedule.RoundBlocking`). The first client that is seen again opens the next round.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import BELOW_1, POSITIVE, bounded, one_of
from fl_app.core.types import GlobalModel, Updates, Vector
from fl_app.schedule import RoundBlocking
from fl_app.strategy.weighted import Stepped


@dataclass(kw_only=True)
class GSGM(Stepped):
    """One step along the mean of K gradients and the mean step of the round before.

    Args:
        momentum: alpha, the weight of the mean step of the round before.
        accumulate: ``"mean"`` (acc is the mean step of a round) or ``"code"`` (1 / K of it).
        apply_momentum: False = the model moves by gm, without the momentum.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "gradient", 10, 0.5)
        >>> stale = Update(2, 2, np.array([0, 2], np.float32), "gradient", 30, 0.5)
        >>> GSGM(server_lr=1.0).aggregate(model, [fresh, stale]).tolist()
        [-1.0, -1.0]
    """

    schedule = RoundBlocking(10)
    looks_at = "sums over several versions, of which nobody has shown that they hide uploads"
    first_state = {"used": {}, "count": 0}

    server_lr: float = bounded(0.2, POSITIVE, "the model would not move")
    momentum: float = bounded(0.1, BELOW_1, "steps would grow")
    accumulate: str = bounded("mean", one_of("mean", "code"), "no other sum is known")
    apply_momentum: bool = True

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        state, trainable = self.state, slice(model.num_trainable)
        if any(update.client_id in state["used"] for update in updates):
            # NOTE: a round's K / P add up to 1; so do its K over their sum, without knowing P.
            state["momentum"] = state.pop("sum") / np.float32(state["count"])
            state["used"], state["count"] = {}, 0
        size = len(updates)
        direction = self.average(model, np.full(size, 1 / size), self.gradients(model, updates))
        applied = direction
        if "momentum" in state:
            direction = direction.copy()
            direction[trainable] += np.float32(self.momentum) * state["momentum"]
            applied = direction if self.apply_momentum else applied
        share = np.float32(size if self.accumulate == "mean" else 1)
        state["sum"] = state.get("sum", np.float32(0)) + share * direction[trainable]
        state["count"] += size
        state["used"] |= {update.client_id: model.version for update in updates}
        return self.step(model, applied, self.server_lr)
