"""Random distribution of all examples, or of a part, with the rest by label."""

from dataclasses import dataclass

import numpy as np

from fl_app.core.errors import require, require_at_least
from fl_app.tasks.partition.base import Indices, capped, check_max_size, classes_of


@dataclass(frozen=True)
class Iid:
    """All examples are distributed at random; sizes are equal up to one.

    Args:
        max_size: most examples of a client, >= 1, beyond which they are left out; None = no limit.

    Raises:
        ValueError: `max_size` is out of its bounds.
    """

    max_size: int | None = None

    def __post_init__(self) -> None:
        check_max_size(self.max_size)

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        parts = np.array_split(rng.permutation(labels.size), num_clients)
        return capped(parts, self.max_size, rng)


@dataclass(frozen=True)
class IidFraction:
    """EAFL's setting T1: a fraction of the examples is distributed at random, the rest by label.

    The rest is sorted by label and cut into blocks. Every example goes to one client. Sizes are
    equal up to 1 + `blocks_per_client`.

    Args:
        fraction: epsilon in [0, 1], share that is distributed at random; 1 is `Iid`.
        blocks_per_client: contiguous blocks of the sorted rest per client, >= 1.

    Raises:
        ValueError: a value is out of its bounds, or the rest gives too few examples for a block.
    """

    fraction: float = 0.04
    blocks_per_client: int = 1

    def __post_init__(self) -> None:
        require_at_least("partition.fraction", self.fraction, 0, "it is a share of 1")
        require(
            self.fraction <= 1,
            "partition.fraction",
            self.fraction,
            "at most 1",
            "it is a share of 1, not a percentage",
        )
        require_at_least(
            "partition.blocks_per_client", self.blocks_per_client, 1, "clients would get no block"
        )

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        order = rng.permutation(labels.size)
        dealt, rest = np.split(order, [round(self.fraction * labels.size)])
        num_blocks = num_clients * self.blocks_per_client
        require(
            rest.size == 0 or num_blocks <= rest.size,
            "partition.blocks_per_client",
            self.blocks_per_client,
            f"at most {rest.size // num_clients} with num_clients={num_clients} and {rest.size} "
            "examples that are not dealt out at random",
            "blocks would be empty",
        )
        by_label = np.concatenate(classes_of(labels[rest], rng)) if rest.size else rest
        blocks = np.array_split(rest[by_label], num_blocks)
        owner = rng.permutation(num_blocks) % num_clients
        parts = np.array_split(dealt, num_clients)
        return [
            np.concatenate([part, *(blocks[b] for b in np.flatnonzero(owner == client_id))])
            for client_id, part in enumerate(parts)
        ]
