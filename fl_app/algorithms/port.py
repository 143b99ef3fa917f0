"""PORT: buffered aggregation weighted by examples, age and agreement, with bounded staleness.

Su, Li: "How Asynchronous can Federated Learning Be?", IWQoS 2022, in the form of its authors' code
(Plato, examples/async).

Server, once K updates Delta_k = w_k - w_o of ages t - o_k have arrived:

    u_k = n_k / n ( b (cos_k + 1) / 2 + a Omega / (t - o_k + Omega) ),    p_k = u_k / sum u
    cos_k = cos(Delta_k, w_t - w_{o_k})  if t > o_k, else 1
    w_{t+1} = w_t + sum_k p_k Delta_k

A client whose model is Omega versions old is recalled: it sends what it has at the end of its local
epoch. No version is made without it (`BoundedStaleness`).

Symbols: a staleness_weight, b similarity_weight, Omega staleness_bound, K schedule.buffer_size.

Deviations: the code compares updates that are older than one version with the last movement of the
global model, whatever their base version. Here an update is compared with the movement since its
base version, or with that over the last two versions (``reference="two_back"``). NOTE: a recall
does not reach a real node that trains, since a SuperNode handles one message at a time; the server
then waits for the whole order.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.errors import require
from fl_app.core.hyper import NON_NEGATIVE, at_least, bounded, one_of
from fl_app.core.types import GlobalModel, Update, Updates, Vector
from fl_app.core.vector import cosines, norm
from fl_app.schedule.bounded_staleness import BoundedStaleness
from fl_app.strategy.weighted import Stepped


@dataclass(kw_only=True)
class PORT(Stepped):
    """Displacements weighted by examples, age and agreement with the global displacement.

    Args:
        server_lr: factor of the whole step; 1 in the paper.
        staleness_weight: a; a + b > 0.
        similarity_weight: b.
        staleness_bound: Omega, versions.
        reference: what an update's direction is compared with: the global displacement since its
            ``"base"`` version, or over the last two (``"two_back"``).

    Examples:
        >>> course = np.array([1, 0], np.float32)
        >>> model = GlobalModel(course, version=3, history={2: np.zeros(2, np.float32)})
        >>> along = Update(1, 2, np.array([2, 0], np.float32), "delta", 10, 0.5)
        >>> back = Update(2, 2, np.array([-2, 0], np.float32), "delta", 10, 0.5)
        >>> strategy = PORT(staleness_weight=0.0)
        >>> strategy.aggregate(model, [along, back]).tolist()
        [3.0, 0.0]
    """

    looks_at = "the cosine of every displacement with the global one"
    first_state = {"before": []}  # with two_back: the last two models, oldest first

    staleness_weight: float = bounded(3.0, NON_NEGATIVE, "weights could be negative")
    similarity_weight: float = bounded(1.0, NON_NEGATIVE, "weights could be negative")
    staleness_bound: int = bounded(10, at_least(1), "ages start at 0")
    reference: str = bounded("base", one_of("base", "two_back"), "no other model is kept")

    def __post_init__(self) -> None:
        super().__post_init__()
        total = self.staleness_weight + self.similarity_weight
        key = "algorithm.strategy.staleness_weight + algorithm.strategy.similarity_weight"
        require(total > 0, key, total, "above 0", "no update would count")
        schedule = BoundedStaleness(staleness_bound=self.staleness_bound)
        self.schedule = schedule  # type: ignore[misc]  # with this class's keyword

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        deltas = self.deltas(model, updates)
        weights = np.array(
            [
                update.num_examples * self._merit(model, update, delta)
                for update, delta in zip(updates, deltas, strict=True)
            ]
        )
        total = weights.sum()
        # All weights are 0 if all updates point straight back and age has no weight.
        weights = weights / total if total > 0 else np.full(len(updates), 1 / len(updates))
        if self.reference == "two_back":
            self.state["before"] = [*self.state["before"], model.params.copy()][-2:]
        return self.step(model, -self.average(model, weights, deltas), self.server_lr)

    def _merit(self, model: GlobalModel, update: Update, delta: Vector) -> float:
        age, bound = model.age(update), self.staleness_bound
        cosine = 1.0
        if age:
            before = self.state.get("before") or [model.params]
            older = model.base(update) if self.reference == "base" else before[0]
            course = (model.params - older)[: model.num_trainable]
            delta = delta[: model.num_trainable]
            product = float(np.dot(delta, course))
            cosine = float(cosines([[product]], [norm(delta)], [norm(course)])[0, 0])
        agreement = self.similarity_weight * (cosine + 1) / 2
        return agreement + self.staleness_weight * bound / (age + bound)
