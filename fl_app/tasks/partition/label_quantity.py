"""Few classes per client and random sizes (WKAFL)."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_app.core.errors import require
from fl_app.core.hyper import bounded, count
from fl_app.tasks.partition.base import Bounded, Indices, by_class

MAX_TRIES = 100

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelQuantity(Bounded):
    """Each client has `num_labels` random classes, in random shares of a random size.

    Algorithm 4 of Zhou et al. (WKAFL): D ~ U{min_size, ..., max_size}, and shares ~ U(0, 1),
    normalised. Counts are rounded, and each is drawn without replacement from its class. NOTE:
    clients draw independently unless `disjoint`. So several clients may hold the same example, and
    some examples belong to no client (3,000 clients with 30 examples each need more than there
    are). NOTE: classes are drawn again until every class is with a client, and shares until a
    client has an example, both at most 100 times.

    Args:
        num_labels: L_num, classes of a client, >= 1.
        min_size: D_min >= 1; the paper gives no value, its code has 10.
        max_size: D_max >= min_size; the code has 49.
        disjoint: whether no two clients share an example.

    Raises:
        ValueError: a value is out of its bounds, or the classes cannot meet the counts.
    """

    num_labels: int = bounded(1, count(), "clients would have no data")
    min_size: int = bounded(10, count(), "a client could not train")
    max_size: int = 49
    disjoint: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        bound = f"at least partition.min_size={self.min_size}"
        fits = self.max_size >= self.min_size
        require(fits, "partition.max_size", self.max_size, bound, "no size could be drawn")

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        pools = by_class(labels, rng)
        require(
            self.num_labels <= len(pools),
            "partition.num_labels",
            self.num_labels,
            f"at most {len(pools)}, the number of classes",
            "a client could not have so many",
        )
        smallest = min(pool.size for pool in pools)
        require(
            self.max_size <= smallest,
            "partition.max_size",
            self.max_size,
            f"at most {smallest}, the examples of the smallest class",
            "a client could not have so many of one class",
        )
        counts = np.zeros((num_clients, len(pools)), np.int64)
        for client_id, classes in enumerate(self._classes(num_clients, len(pools), rng)):
            size = rng.integers(self.min_size, self.max_size, endpoint=True)
            for _ in range(MAX_TRIES):
                shares = rng.random(self.num_labels)
                counts[client_id, classes] = np.rint(size * shares / shares.sum())
                if counts[client_id].any():
                    break
            else:  # one example of ten classes nearly always rounds to none
                counts[client_id, classes[shares.argmax()]] = 1
        if self.disjoint:
            return _dealt(counts, pools)
        return [
            np.concatenate(
                [rng.choice(pools[c], row[c], replace=False) for c in np.flatnonzero(row)]
            )
            for row in counts
        ]

    def _classes(self, num_clients: int, num_classes: int, rng: np.random.Generator) -> Indices:
        """Every client's classes, shape ``(num_clients, num_labels)``."""
        for _ in range(MAX_TRIES):
            order = rng.random((num_clients, num_classes)).argsort(axis=1)
            classes = order[:, : self.num_labels]
            missing = num_classes - np.unique(classes).size
            if not missing or num_clients * self.num_labels < num_classes:
                return classes
        log.info(
            "%d of %d classes are with no client after %d tries", missing, num_classes, MAX_TRIES
        )
        return classes


def _dealt(counts: Indices, pools: Sequence[Indices]) -> list[Indices]:
    """Give each client consecutive pieces of the shuffled classes."""
    for label, (wanted, pool) in enumerate(zip(counts.sum(axis=0), pools, strict=True)):
        if wanted > pool.size:
            raise ValueError(
                f"partition.disjoint=True cannot be met: {len(counts)} clients draw {wanted} "
                f"examples of class number {label}, which has {pool.size}; have fewer clients or "
                "smaller ones, or let them share examples"
            )
    pieces = [
        np.split(pool, counts[:, label].cumsum())[: len(counts)] for label, pool in enumerate(pools)
    ]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]
