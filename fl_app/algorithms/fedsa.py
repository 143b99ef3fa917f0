"""FedSA (re-interpreted): a fast first stage and a careful second one, weights by staleness.

After Chen, Mao, Ma: "FedSA: A Staleness-Aware Asynchronous Federated Learning Algorithm with
Non-IID Data", Future Generation Computer Systems 120, 2021.

NOTE: the paper's equations were not available. Known are two stages of training with local epochs
and rates of their own, and weights by staleness. Everything else is our assumption [A]. Results say
nothing about the paper's algorithm and do not belong into comparisons with it.

Server, on every upload w_i of a client that started from version o, at version t:

    w_{t+1} = (1 - alpha_t) w_t + alpha_t w_i,    alpha_t = alpha (t - o + 1)^(-a)

with alpha halved in the second stage. The second stage begins when the mean training loss of the
last 5 % of the run's versions is less than 1 % below that of the 5 % before them. It does not end.

Client: SGD (`fl_app.client.LocalTrainer`); 2 E local epochs at the rate eta in the first stage,
max(1, E / 2 rounded down) at eta / sqrt(10) in the second.

Symbols: alpha mixing, a exponent, E local_epochs, eta client.local_lr.

Deviations: see the note above.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, NON_NEGATIVE, SHARE, bounded
from fl_app.core.staleness import polynomials
from fl_app.core.types import TRAINED, Config, GlobalModel, Updates, Vector
from fl_app.schedule import fully_async
from fl_app.strategy import AsyncStrategy

WINDOW = 0.05  # of the run's versions, over which the loss is averaged
MIN_GAIN = 0.01  # relative fall of the mean loss; less begins the second stage
CAREFUL_RATE = 0.1**0.5
CAREFUL_MIXING = 0.5


@dataclass(kw_only=True)
class FedSA(AsyncStrategy):
    """Mixes each arrival into the global model, in two stages; orders tell clients the stage.

    Args:
        mixing: alpha, the weight of a fresh update.
        exponent: a.
        local_epochs: E; with `local_steps`, both stages have as many steps.
        num_versions: of the run.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> update = Update(1, 3, np.array([1, 2], np.float32), "model", 10, 0.5)
        >>> FedSA(mixing=0.5).aggregate(model, [update]).tolist()
        [0.5, 1.0]
        >>> FedSA(local_epochs=5).dispatch(model, client_id=1)[1]
        {'local_epochs': 10, 'local_lr_factor': 1.0}
    """

    schedule = fully_async(10)
    takes = TRAINED
    looks_at = "the clients' losses, which decide its stage"
    chooses_epochs = True
    first_state = {
        "losses": [],  # mean of the uploads, of the last versions
        "careful": False,  # whether in the second stage
    }

    mixing: float = bounded(0.6, SHARE, "it is a mixing weight")
    exponent: float = bounded(0.5, NON_NEGATIVE, "staler updates would count more")
    local_epochs: int = bounded(5, COUNT, "nothing would be trained")
    num_versions: int = bounded(
        100, COUNT, "the stages are shares of them (with num_versions=null it must be given)"
    )

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        if self.state["careful"]:
            epochs, factor = max(1, self.local_epochs // 2), CAREFUL_RATE
        else:
            epochs, factor = 2 * self.local_epochs, 1.0
        return model.params, {"local_epochs": epochs, "local_lr_factor": factor}

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        mixing = self.mixing * (CAREFUL_MIXING if self.state["careful"] else 1.0)
        weights = (mixing * polynomials(model, updates, self.exponent)).tolist()
        self.report = {"weight": weights, "stage": 2 if self.state["careful"] else 1}
        params = self.mix(model, weights, updates)
        self._record_losses([update.loss for update in updates])
        return params

    def _record_losses(self, losses: Sequence[float]) -> None:
        """Record a version's losses; begin the second stage if they no longer fall."""
        window = math.ceil(WINDOW * self.num_versions)
        self.state["losses"] = [*self.state["losses"], float(np.mean(losses))][-2 * window :]
        if len(self.state["losses"]) == 2 * window:
            before, last = np.split(np.array(self.state["losses"]), 2)
            if last.mean() > (1 - MIN_GAIN) * before.mean():
                self.state["careful"] = True
