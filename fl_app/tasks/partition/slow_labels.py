"""Labels of their own for slow clients: speed and data have to do with each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_app.core.errors import require
from fl_app.core.slow import slow_clients
from fl_app.tasks.partition.base import Indices
from fl_app.tasks.partition.dirichlet import Dirichlet


@dataclass(frozen=True)
class SlowLabels:
    """Slow clients hold some classes, and no other client does; they hold nothing else.

    `fl_app.core.slow.slow_clients` names the slow clients. They share their classes by `Dirichlet`,
    and the other clients share the other classes likewise. Every example goes to one client.

    Args:
        slow_share: share of slow clients, in (0, 1).
        labels: classes of the slow clients, at least one, not all.
        alpha: concentration, see `Dirichlet`.
        min_size: least number of a client's examples, >= 1.
        balance: see `Dirichlet`.

    Raises:
        ValueError: a value is out of its bounds, a class does not occur, or no client is left for
            the other classes.
    """

    slow_share: float = 0.2
    labels: Sequence[int] = (8, 9)
    alpha: float = 0.3
    min_size: int = 1
    balance: bool = False

    def __post_init__(self) -> None:
        slow_clients(1, self.slow_share)
        unique = len(set(self.labels)) == len(self.labels) > 0
        require(unique, "partition.labels", list(self.labels), "classes, each once", "none is slow")
        self._shared()

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        slow = slow_clients(num_clients, self.slow_share)
        require(
            len(slow) < num_clients,
            "partition.slow_share",
            self.slow_share,
            f"smaller: {len(slow)} of {num_clients} clients would be slow",
            "the other classes would have no client",
        )
        known = set(np.unique(labels).tolist())
        require(
            known > set(self.labels),
            "partition.labels",
            list(self.labels),
            f"some but not all of the classes {sorted(known)}",
            "slow or other clients would have no examples",
        )
        theirs = np.isin(labels, list(self.labels))
        groups = ((~theirs, num_clients - len(slow)), (theirs, len(slow)))  # slow ids come last
        parts = []
        for chosen, size in groups:
            indices = np.flatnonzero(chosen)
            parts += [indices[own] for own in self._shared()(labels[indices], size, rng)]
        return parts

    def _shared(self) -> Dirichlet:
        return Dirichlet(self.alpha, self.min_size, self.balance)
