"""Random distribution: of all examples, of a part with the rest by label, and by owner."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fl_app.core.errors import require
from fl_app.core.hyper import bounded, count, or_none, within
from fl_app.tasks.partition.base import Bounded, Indices, by_class, by_owner, capped

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Iid(Bounded):
    """All examples are distributed at random; sizes are equal up to one.

    Args:
        max_size: most examples of a client, >= 1; None = no limit.

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

    The rest is sorted by label and cut into a block for each client. Sizes are equal up to 2.

    Args:
        fraction: epsilon in [0, 1], share that is distributed at random; 1 is `Iid`.

    Raises:
        ValueError: a value is out of its bounds, or the rest gives too few examples for a block.
    """

    fraction: float = bounded(0.04, within("[0, 1]"), "it is a share of 1, not a percentage")

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        order = rng.permutation(labels.size)
        dealt, rest = np.split(order, [round(self.fraction * labels.size)])
        require(
            rest.size == 0 or num_clients <= rest.size,
            "num_clients",
            num_clients,
            f"at most {rest.size}, the examples that are not dealt out at random",
            "blocks would be empty",
        )
        by_label = np.concatenate(by_class(labels[rest], rng)) if rest.size else rest
        blocks = np.array_split(rest[by_label], num_clients)
        place = np.argsort(rng.permutation(num_clients))
        parts = np.array_split(dealt, num_clients)
        return [np.concatenate([part, blocks[b]]) for part, b in zip(parts, place, strict=True)]


@dataclass(frozen=True)
class Natural(Bounded):
    """Each client holds all examples of one owner: a writer, speaker or user.

    If there are fewer clients than owners, random owners take part, and the examples of the others
    are not used. Clients are in the order of their owners' ids.

    Args:
        min_size: least number of examples of an owner that takes part, >= 1.

    Attributes:
        by_owner: whether the labels are owners' ids.
        decides: whether ``num_clients`` may be None: all owners then take part.

    Raises:
        ValueError: a value is out of its bounds, or there are more clients than owners.
    """

    by_owner: ClassVar[bool] = True
    decides: ClassVar[bool] = True

    min_size: int = bounded(1, count(), "a client could not train")

    def __call__(
        self, labels: Indices, num_clients: int | None, rng: np.random.Generator
    ) -> list[Indices]:
        owned = by_owner(labels)
        fit = np.flatnonzero([own.size >= self.min_size for own in owned])
        num_clients = fit.size if num_clients is None else num_clients
        require(
            num_clients <= fit.size,
            "num_clients",
            num_clients,
            f"at most {fit.size}, the owners of at least partition.min_size={self.min_size} "
            "examples, or left out",
            "a client is one of them",
        )
        if num_clients < fit.size:
            told = (
                "num_clients=%d is below the %d owners of the data: the others' examples are unused"
            )
            log.warning(told, num_clients, fit.size)
        return [owned[owner] for owner in np.sort(rng.choice(fit, num_clients, replace=False))]
