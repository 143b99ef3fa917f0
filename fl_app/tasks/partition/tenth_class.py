"""One class that only slow clients have (FedHist)."""

from dataclasses import dataclass

import numpy as np

from fl_app.core.errors import require, require_at_least
from fl_app.core.slow import slow_clients
from fl_app.tasks.partition.base import Indices
from fl_app.tasks.partition.dirichlet import Dirichlet


@dataclass(frozen=True)
class TenthClass:
    """Only slow clients have one of the classes; all clients share the others by `Dirichlet`.

    FedHist, figure 5, with the tenth class. `fl_app.core.slow.slow_clients` names the slow clients.
    They share the class equally. Every example goes to one client.

    Args:
        slow_share: share of slow clients, in (0, 1]; the paper gives no value.
        label: the class.
        alpha: concentration of the other classes, see `Dirichlet`.
        min_size: least number of a client's examples of the other classes, >= 1.
        balance: see `Dirichlet`.

    Raises:
        ValueError: a value is out of its bounds, the class does not occur, or it is too small.
    """

    slow_share: float = 0.1
    label: int = 9
    alpha: float = 0.3
    min_size: int = 1
    balance: bool = False

    def __post_init__(self) -> None:
        require_at_least("partition.label", self.label, 0, "it is a class")
        slow_clients(1, self.slow_share)
        self._others()

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        slow = slow_clients(num_clients, self.slow_share)
        tenth = rng.permutation(np.flatnonzero(labels == self.label))
        others = np.flatnonzero(labels != self.label)
        require(
            tenth.size >= len(slow),
            "partition.label",
            self.label,
            f"a class of at least {len(slow)} examples, as many as slow clients",
            f"they share it, and it has {tenth.size}",
        )
        parts = [others[own] for own in self._others()(labels[others], num_clients, rng)]
        for client_id, share in zip(slow, np.array_split(tenth, len(slow)), strict=True):
            parts[client_id] = np.concatenate([parts[client_id], share])
        return parts

    def _others(self) -> Dirichlet:
        return Dirichlet(self.alpha, self.min_size, self.balance)
