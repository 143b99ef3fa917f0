"""Shards of the sorted data, in unequal numbers per client (Overlap-FedAvg)."""

from dataclasses import dataclass

import numpy as np

from fl_app.core.errors import require
from fl_app.core.hyper import bounded, count
from fl_app.tasks.partition.base import Bounded, Indices


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

    shard_size: int = bounded(100, count(), "shards would be empty")
    contiguous: bool = False

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        total = labels.size // self.shard_size
        require(
            total >= num_clients,
            "partition.shard_size",
            self.shard_size,
            f"at most {labels.size // num_clients} with {labels.size} training examples and "
            f"num_clients={num_clients}",
            "some clients would have no shard",
        )
        shards = np.array_split(labels.argsort(kind="stable"), total)
        counts = self._counts(num_clients, total, rng)
        order = np.arange(total) if self.contiguous else rng.permutation(total)
        return [
            np.concatenate([shards[place] for place in own])
            for own in np.split(order, counts.cumsum()[:-1])
        ]

    def _counts(self, num_clients: int, total: int, rng: np.random.Generator) -> Indices:
        """Number of shards of each client; they add up to `total`."""
        counts = np.ones(num_clients, np.int64)
        full = total / num_clients + total / 2
        while (rest := total - int(counts.sum())) > 0:
            client_id = rng.integers(num_clients)
            # A single client is never full.
            if counts[client_id] < full or num_clients == 1:
                counts[client_id] += min(rest, rng.integers(1, rest // 4 + 3, endpoint=True))
        return counts
