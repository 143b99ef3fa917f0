"""AsyncFedED: an arrival counts less the further the model has moved since its client began.

Wang, Yang, He, Shi, Chen: "AsyncFedED: Asynchronous Federated Learning with Euclidean Distance
based Adaptive Weight Aggregation", arXiv:2205.13797.

Server, on every upload of a client that started from version o, with Delta = w_i - w_o:

    gamma = ||w_t - w_o|| / ||Delta||,    w_{t+1} = w_t + lambda / (gamma + eps) Delta

and, with ``adapt_epochs``, the number of the client's local epochs from its next order on:

    E_i <- min(E_max, max(1, E_i + floor(kappa (gamma_bar - gamma))))

Client: E_i epochs of local SGD from w_o.

Symbols: lambda server_lr, eps offset (both 1 [A], so that a fresh upload moves the model by
itself), gamma_bar target_distance, kappa epoch_rate, E_max max_epochs.

Deviations: the paper prints no lambda and eps that would suit here. The rule for epochs is quoted
from an implementation (FedOpt), which has neither bound. Several uploads at once (another schedule)
move the model one after the other. An upload of length 0 has weight 0. Buffers such as
BatchNorm's move by the weight, at most to the client's. With `clip_norm` Delta is the
clipped displacement, also in gamma.
"""

import math
from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, bounded
from fl_app.core.types import TRAINED, Config, GlobalModel, Updates, Vector
from fl_app.core.vector import norm
from fl_app.schedule import fully_async
from fl_app.strategy.weighted import Stepped


@dataclass(kw_only=True)
class AsyncFedED(Stepped):
    """Adds each arrival's displacement, weighted by its length over the model's drift meanwhile.

    Args:
        offset: eps.
        adapt_epochs: whether the clients' numbers of local epochs follow gamma; `local_steps` stay
            as they are.
        local_epochs: E_i before a client's first upload.
        target_distance: gamma_bar, at which a client keeps its number of epochs.
        epoch_rate: kappa.
        max_epochs: most local epochs of a client [A].

    Examples:
        >>> start = np.zeros(2, np.float32)
        >>> model = GlobalModel(np.array([0, 3], np.float32), version=3, history={2: start})
        >>> stale = Update(1, 2, np.array([1, 0], np.float32), "delta", 10, 0.5)
        >>> AsyncFedED().aggregate(model, [stale]).tolist()  # gamma = 3, so the weight is 1/4
        [0.25, 3.0]
    """

    schedule = fully_async(10)
    takes = TRAINED
    looks_at = "the length of every displacement"
    first_state = {"epochs": {}}  # client -> E_i, if they are adapted

    offset: float = bounded(1.0, POSITIVE, "a fresh upload would have an infinite weight")
    adapt_epochs: bool = False
    local_epochs: int = bounded(5, COUNT, "nothing would be trained")
    target_distance: float = bounded(1.0, NON_NEGATIVE, "it is a quotient of lengths")
    epoch_rate: float = bounded(1.0, POSITIVE, "the number of epochs would not follow")
    max_epochs: int = bounded(20, COUNT, "nothing would be trained")

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = not self.adapt_epochs or self.local_epochs <= self.max_epochs
        bound = f"at least algorithm.strategy.local_epochs={self.local_epochs}"
        reason = "the first order of a client would have more epochs than any later one may"
        self._require(fits, "max_epochs", bound, reason)

    @property
    def chooses_epochs(self) -> bool:  # type: ignore[override]  # as its keyword says
        return self.adapt_epochs

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        if not self.adapt_epochs:
            return model.params, {}
        return model.params, {"local_epochs": self._epochs(client_id)}

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        split = model.num_trainable
        decay = 1.0 if self.lr_schedule is None else self.lr_schedule.factor(model.version)
        params, weights, distances = model.params.copy(), [], []
        deltas = self.deltas(model, updates)
        for update, delta in zip(updates, deltas, strict=True):
            length = norm(delta[:split])
            drift = norm((params - model.base(update))[:split])
            distance = drift / length if length else math.inf
            weight = decay * self.server_lr / (distance + self.offset)
            params[:split] += np.float32(weight) * delta[:split]
            to_client = model.params[split:] + delta[split:] - params[split:]
            params[split:] += np.float32(min(weight, 1.0)) * to_client
            weights.append(weight)
            distances.append(distance)
            if self.adapt_epochs:
                self._adapt(update.client_id, distance)
        self.report["weight"] = weights
        self.report["distance"] = [d if math.isfinite(d) else None for d in distances]
        return params

    def _epochs(self, client_id: int) -> int:
        return int(self.state["epochs"].get(client_id, self.local_epochs))

    def _adapt(self, client_id: int, distance: float) -> None:
        change = self.epoch_rate * (self.target_distance - distance)
        epochs = self._epochs(client_id) + max(change, -self.max_epochs)
        self.state["epochs"][client_id] = min(max(1, math.floor(epochs)), self.max_epochs)
