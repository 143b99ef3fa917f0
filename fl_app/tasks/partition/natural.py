"""One client per writer, speaker or user."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fl_app.core.errors import require, require_at_least
from fl_app.tasks.partition.base import Indices


@dataclass(frozen=True)
class Natural:
    """Each client holds all examples of one owner.

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

    min_size: int = 1

    def __post_init__(self) -> None:
        require_at_least("partition.min_size", self.min_size, 1, "a client could not train")

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        _, places, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        fit = np.flatnonzero(sizes >= self.min_size)
        require(
            num_clients <= fit.size,
            "num_clients",
            num_clients,
            f"at most {fit.size}, the owners of at least partition.min_size={self.min_size} "
            "examples, or left out",
            "a client is one of them",
        )
        chosen = np.sort(rng.choice(fit, num_clients, replace=False))
        owned = np.split(places.argsort(kind="stable"), sizes.cumsum()[:-1])
        return [owned[owner] for owner in chosen]
