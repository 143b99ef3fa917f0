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
    """Slow clients hold some classes, and no other client does.

    `fl_app.core.slow.slow_clients` names the slow clients. Without `others` they hold nothing else:
    they share their classes by `Dirichlet`, and the other clients share the other classes likewise.
    With `others` all clients share the other classes by `Dirichlet`, and the slow clients share
    their classes equally (FedHist, figure 5, the tenth class). Every example goes to one client.

    Args:
        slow_share: share of slow clients, in (0, 1).
        labels: classes of the slow clients, at least one, not all.
        alpha: concentration, see `Dirichlet`.
        min_size: least number of a client's examples, with `others` of the other classes, >= 1.
        balance: see `Dirichlet`.
        others: whether slow clients also hold other classes.

    Raises:
        ValueError: a value is out of its bounds, a class does not occur or is too small, or no
            client is left for the other classes.
    """

    slow_share: float = 0.2
    labels: Sequence[int] = (8, 9)
    alpha: float = 0.3
    min_size: int = 1
    balance: bool = False
    others: bool = False

    def __post_init__(self) -> None:
        slow_clients(1, self.slow_share)
        unique = len(set(self.labels)) == len(self.labels) > 0
        require(unique, "partition.labels", list(self.labels), "classes, each once", "none is slow")
        self._shared()

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        slow = slow_clients(num_clients, self.slow_share)
        known = set(np.unique(labels).tolist())
        require(
            known > set(self.labels),
            "partition.labels",
            list(self.labels),
            f"some but not all of the classes {sorted(known)}",
            "slow or other clients would have no examples",
        )
        own = np.isin(labels, list(self.labels))
        theirs, rest = np.flatnonzero(own), np.flatnonzero(~own)
        if self.others:
            theirs = rng.permutation(theirs)
            bound = f"classes of at least {len(slow)} examples, as many as slow clients"
            fits = theirs.size >= len(slow)
            require(fits, "partition.labels", list(self.labels), bound, "slow clients share them")
            parts = [rest[place] for place in self._shared()(labels[rest], num_clients, rng)]
            for client_id, share in zip(slow, np.array_split(theirs, len(slow)), strict=True):
                parts[client_id] = np.concatenate([parts[client_id], share])
            return parts
        require(
            len(slow) < num_clients,
            "partition.slow_share",
            self.slow_share,
            f"smaller: {len(slow)} of {num_clients} clients would be slow",
            "the other classes would have no client",
        )
        groups = ((rest, num_clients - len(slow)), (theirs, len(slow)))  # slow ids come last
        return [
            chosen[place]
            for chosen, size in groups
            for place in self._shared()(labels[chosen], size, rng)
        ]

    def _shared(self) -> Dirichlet:
        return Dirichlet(self.alpha, self.min_size, self.balance)
