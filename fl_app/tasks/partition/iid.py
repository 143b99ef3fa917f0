"""Random distribution: of all examples, of a part with the rest by label, and by owner."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fl_app.core.errors import require
from fl_app.core.hyper import bounded, count, or_none, within
from fl_app.tasks.partition.base import Bounded, Indices, by_class, by_owner, capped


@dataclass(frozen=True)
class Iid(Bounded):
    """All examples are distributed at random; sizes are equal up to one.

    Args:
        max_size: most examples of a client, >= 1, beyond which they are left out; None = no limit.

    Raises:
        ValueError: `max_size` is out of its bounds.
    """

    max_size: int | None = bounded(None, or_none(count()), "a client could not train")

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        parts = np.array_split(rng.permutation(labels.size), num_clients)
        return capped(parts, self.max_size, rng)


@dataclass(frozen=True)
class IidFraction(Bounded):
    """EAFL's setting T1: a fraction of the examples is distributed at random, the rest by label.

    The rest is sorted by label and cut into a block for each client. Every example goes to one
    client. Sizes are equal up to two.

    Args:
        fraction: epsilon in [0, 1], share that is distributed at random; 1 is `Iid`.

    Raises:
        ValueError: the fraction is out of its bounds, or the rest is too small for a block each.
    """

    fraction: float = bounded(0.04, within("[0, 1]"), "it is a share of 1, not a percentage")

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        order = rng.permutation(labels.size)
        dealt, rest = np.split(order, [round(self.fraction * labels.size)])
        bound = f"1, or such that at least num_clients={num_clients} examples are not dealt out"
        fits = rest.size == 0 or num_clients <= rest.size
        require(fits, "partition.fraction", self.fraction, bound, "blocks would be empty")
        by_label = np.concatenate(by_class(labels[rest], rng)) if rest.size else rest
        blocks = np.array_split(rest[by_label], num_clients)
        places = rng.permutation(num_clients).argsort()
        parts = zip(np.array_split(dealt, num_clients), places, strict=True)
        return [np.concatenate([part, blocks[place]]) for part, place in parts]


@dataclass(frozen=True)
class Natural(Bounded):
    """Each client holds all examples of one owner: a writer, speaker or user.

    If there are fewer clients than owners, random owners take part, and the examples of the others
    are not used. Clients are in the order of their owners' ids.

    Args:
        min_size: least number of examples of an owner that takes part, >= 1.

    Attributes:
        by_owner: whether the labels are owners' ids.

    Raises:
        ValueError: a value is out of its bounds, or there are more clients than owners.
    """

    by_owner: ClassVar[bool] = True

    min_size: int = bounded(1, count(), "a client could not train")

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        owned = by_owner(labels)
        fit = np.flatnonzero([own.size >= self.min_size for own in owned])
        require(
            num_clients <= fit.size,
            "num_clients",
            num_clients,
            f"at most {fit.size}, the owners of at least partition.min_size={self.min_size} "
            "examples, or left out",
            "a client is one of them",
        )
        return [owned[owner] for owner in np.sort(rng.choice(fit, num_clients, replace=False))]
