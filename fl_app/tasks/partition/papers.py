"""Partitions that single papers need: WKAFL, EAFL, Overlap-FedAvg."""

import logging
from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, UNIT_INTERVAL, bounded
from fl_app.core.types import Indices, Rng
from fl_app.tasks.partition import Bounded, by_class, require_clients, split

MAX_TRIES = 100

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelQuantity(Bounded):
    """Each client has `num_labels` random classes, in random shares of a random size.

    Algorithm 4 of Zhou et al. (WKAFL): D ~ U{min_size, ..., max_size}, and shares ~ U(0, 1),
    normalised. Counts are rounded, and each is drawn without replacement from its class. NOTE:
    clients draw independently unless `disjoint`. So several clients may hold the same example, and
    some examples belong to no client (3,000 clients with 30 examples each need more than the data
    have). NOTE: classes are drawn again until every class is with a client, and shares until a
    client has an example, both at most 100 times.

    Args:
        num_labels: L_num, classes of a client, >= 1.
        min_size: D_min >= 1; the paper gives no value, its code has 10.
        max_size: D_max >= min_size; the code has 49.
        disjoint: whether no two clients share an example.

    Raises:
        ValueError: a value is out of its bounds, or the classes cannot meet the counts.
    """

    num_labels: int = bounded(1, COUNT, "clients would have no data")
    min_size: int = bounded(10, COUNT, "a client could not train")
    max_size: int = 49
    disjoint: bool = False

    def __call__(self, labels: Indices, num_clients: int, rng: Rng) -> list[Indices]:
        pools = by_class(labels, rng)
        bound = f"at most {len(pools)}, the number of classes"
        reason = "a client could not have so many"
        self._require(self.num_labels <= len(pools), "num_labels", bound, reason)
        smallest = min(pool.size for pool in pools)
        bound = f"at most {smallest}, the examples of the smallest class"
        self._require(self.max_size <= smallest, "max_size", bound, f"{reason} of one class")
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
            for label, (wanted, pool) in enumerate(zip(counts.sum(axis=0), pools, strict=True)):
                if wanted > pool.size:
                    raise ValueError(
                        f"partition.disjoint=True cannot be met: {num_clients} clients draw "
                        f"{wanted} examples of class number {label}, which has {pool.size}; have "
                        "fewer clients or smaller ones, or let them share examples"
                    )
            return split(pools, counts)
        return [
            np.concatenate(
                [rng.choice(pools[c], row[c], replace=False) for c in np.flatnonzero(row)]
            )
            for row in counts
        ]

    def _classes(self, num_clients: int, num_classes: int, rng: Rng) -> Indices:
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


@dataclass(frozen=True)
class IidFraction(Bounded):
    """EAFL's setting T1: a fraction of the examples is distributed at random, the rest by label.

    The rest is sorted by label and cut into a block for each client. Sizes are equal up to 2.

    Args:
        fraction: epsilon in [0, 1], share that is distributed at random; 1 is `Iid`.

    Raises:
        ValueError: a value is out of its bounds, or the rest gives too few examples for a block.
    """

    fraction: float = bounded(0.04, UNIT_INTERVAL, "it is a share of 1, not a percentage")

    def __call__(self, labels: Indices, num_clients: int, rng: Rng) -> list[Indices]:
        order = rng.permutation(labels.size)
        random_part, others = np.split(order, [round(self.fraction * labels.size)])
        if others.size:
            what = "the examples that are not dealt out at random"
            require_clients(num_clients, others.size, what, "blocks would be empty")
        by_label = np.concatenate(by_class(labels[others], rng)) if others.size else others
        blocks = np.array_split(others[by_label], num_clients)
        place = np.argsort(rng.permutation(num_clients))
        parts = np.array_split(random_part, num_clients)
        return [np.concatenate([part, blocks[b]]) for part, b in zip(parts, place, strict=True)]


@dataclass(frozen=True)
class Shards(Bounded):
    """Data are sorted by label and cut into shards; clients get unequal numbers of random shards.

    Overlap-FedAvg's partition. Every client starts with one shard. Then random clients get 1 to
    rest/4 + 3 more, until no shard is left. A client that already has the mean number plus half of
    all shards gets no more. Sizes are very unequal, and small clients have skewed labels. Every
    example goes to one client. NOTE: the authors' code seeds its generator inside that loop and may
    run for ever; here one generator draws. NOTE: if the shards do not divide the data, some shards
    have one more example.

    Args:
        shard_size: examples per shard, >= 1.
        contiguous: whether a client's shards are neighbours, as for pieces of one text.

    Raises:
        ValueError: a value is out of its bounds, or there are fewer shards than clients.
    """

    shard_size: int = bounded(100, COUNT, "shards would be empty")
    contiguous: bool = False

    def __call__(self, labels: Indices, num_clients: int, rng: Rng) -> list[Indices]:
        total = labels.size // self.shard_size
        cap = labels.size // num_clients
        bound = f"at most {cap} with {labels.size} training examples and num_clients={num_clients}"
        self._require(total >= num_clients, "shard_size", bound, "some clients would have no shard")
        shards = np.array_split(labels.argsort(kind="stable"), total)
        counts = np.ones(num_clients, np.int64)
        full = total / num_clients + total / 2
        while (left := total - int(counts.sum())) > 0:
            client_id = rng.integers(num_clients)
            # A single client is never full.
            if counts[client_id] < full or num_clients == 1:
                counts[client_id] += min(left, rng.integers(1, left // 4 + 3, endpoint=True))
        order = np.arange(total) if self.contiguous else rng.permutation(total)
        return [
            np.concatenate([shards[place] for place in places])
            for places in np.split(order, counts.cumsum()[:-1])
        ]
