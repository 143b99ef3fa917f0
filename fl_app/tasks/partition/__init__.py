"""Partitioners: which client holds which training examples.

A partitioner maps labels, the number of clients and a random generator to one index array per
client. It works on counts and index arrays alone, so 3,000 clients cost milliseconds.

`flwr.Flwr` wraps any partitioner of flwr-datasets. Those of the same names differ from the ones in
this package, which papers need:

- `IidPartitioner` and `DirichletPartitioner` cut the data (each class) in stored order.
- `DirichletPartitioner` raises after 10 tries for the minimum size (with 50 clients, 1,437 examples
  and at least 10 each, for every second seed).
- `ShardPartitioner` gives the same number of shards to all clients.
- `NaturalIdPartitioner` uses all owners; otherwise it agrees with `Natural`.

This module has the protocol, checks of partitions, and the usual two: at random, by owner.
"""

import logging
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import numpy as np

from fl_app.core.errors import require
from fl_app.core.hyper import COUNT, Checked, at_least, bounded
from fl_app.core.layout import names_of
from fl_app.core.types import Indices, Rng

USUAL_CLIENTS = 50  # if neither the run nor its data nor its partitioner decide the number
STREAM = 0x7061_7274_6974_696F  # keeps the partition's random numbers apart from all others

log = logging.getLogger(__name__)


class Partitioner(Protocol):
    """Distributes training examples over clients."""

    def __call__(self, labels: Indices, num_clients: int, rng: Rng) -> list[Indices]:
        """One array of indices into `labels` per client; equal generators give equal partitions.

        Args:
            labels: classes of the training examples, shape ``(n,)``, or their owners if the
                partitioner has ``by_owner``.
            num_clients: N, 1 <= N <= n.
            rng: the only source of randomness.

        Raises:
            ValueError: these examples cannot be distributed over `num_clients` clients.
        """


class Bounded(Checked):
    """The base of partitioners whose fields have bounds.

    Raises:
        ValueError: a value is out of its bounds, or `max_size` below `min_size`.
    """

    _group = "partition"

    def __post_init__(self) -> None:
        super().__post_init__()
        minimum, maximum = getattr(self, "min_size", 1), getattr(self, "max_size", None)
        if maximum is not None:
            bound = f"at least partition.min_size={minimum}"
            self._require(maximum >= minimum, "max_size", bound, "no size could meet both")


def make_partition(
    partitioner: Partitioner,
    labels: Indices,
    num_clients: int | None,
    seed: int,
    owners: Indices | None = None,
) -> list[Indices]:
    """A partition in which every client has data, with each client's indices in ascending order.

    Args:
        partitioner: distributes the examples.
        labels: classes of the training examples, shape ``(n,)``.
        num_clients: N >= 1; None = as many as the partitioner ``decides``, else
            `USUAL_CLIENTS`.
        seed: seed of the run.
        owners: the writer, speaker or person of each example, shape ``(n,)``; None = unknown.

    Raises:
        ValueError: there are fewer examples than clients, a client gets none, or the partitioner
            needs owners, which are unknown, or gives something else than indices for each client.
    """
    if num_clients is None and not getattr(partitioner, "decides", False):
        num_clients = USUAL_CLIENTS
    if num_clients is not None:
        at_least(1).check("num_clients", num_clients, "there would be no client to train")
        what = "the number of training examples"
        require_clients(num_clients, labels.size, what, "some clients would have no data")
    if getattr(partitioner, "by_owner", False):
        if owners is None:
            raise ValueError(
                f"partition={type(partitioner).__name__.lower()} needs the owner of each training "
                "example, which this task's data do not have: a table of your own names it with "
                "task.client=COLUMN, a folder of images has the form DIR/client/class, and "
                "docs/data.md has public data with owners"
            )
        labels = owners
    # None is only for partitioners that decide.
    parts = partitioner(labels, cast(int, num_clients), np.random.default_rng((seed, STREAM)))
    bound, reason = f"a partitioner of {num_clients} clients", "their data would be unknown"
    require(num_clients in (None, len(parts)), "partition", f"one of {len(parts)}", bound, reason)
    for indices in parts:
        good = indices.dtype.kind in "iu" and bool(((indices >= 0) & (indices < labels.size)).all())
        bound = f"a partitioner that gives indices from 0 to {labels.size - 1}"
        require(good, "partition", partitioner, bound, "they name training examples")
    empty = [str(client_id) for client_id, indices in enumerate(parts) if indices.size == 0]
    if empty:
        raise ValueError(
            f"partition={partitioner} leaves {len(empty)} of {len(parts)} clients without "
            f"training examples (clients {names_of(empty, 5)}): they could not train"
        )
    return [np.sort(indices) for indices in parts]


def require_clients(num_clients: int, cap: int, what: str, consequence: str) -> None:
    """Refuse more than `cap` clients, the number of `what`."""
    require(num_clients <= cap, "num_clients", num_clients, f"at most {cap}, {what}", consequence)


def by_class(labels: Indices, rng: Rng) -> list[Indices]:
    """For each class in `labels`, an array of its indices in random order."""
    return [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]


def by_owner(owners: Indices) -> list[Indices]:
    """For each owner, in the order of their ids, an array of its indices in ascending order."""
    _, places, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    return np.split(places.argsort(kind="stable"), sizes.cumsum()[:-1])


def split(classes: list[Indices], counts: Indices) -> list[Indices]:
    """Give each client consecutive pieces of the classes.

    Args:
        classes: indices of each class.
        counts: how many of each class a client gets, shape ``(num_clients, num_classes)``.
    """
    pieces = [
        np.split(ids, counts[:, place].cumsum())[: len(counts)] for place, ids in enumerate(classes)
    ]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]


def capped(parts: list[Indices], max_size: int | None, rng: Rng) -> list[Indices]:
    """The parts with at most `max_size` examples each, drawn at random; None = as they are."""
    if max_size is None:
        return parts
    return [
        part if part.size <= max_size else rng.choice(part, max_size, replace=False)
        for part in parts
    ]


@dataclass(frozen=True)
class Iid(Bounded):
    """All examples are distributed at random; sizes are equal up to one.

    Args:
        max_size: most examples of a client, >= 1; None = no limit.

    Raises:
        ValueError: `max_size` is out of its bounds.
    """

    max_size: int | None = bounded(None, COUNT, "a client could not train")

    def __call__(self, labels: Indices, num_clients: int, rng: Rng) -> list[Indices]:
        parts = np.array_split(rng.permutation(labels.size), num_clients)
        return capped(parts, self.max_size, rng)


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

    min_size: int = bounded(1, COUNT, "a client could not train")

    def __call__(self, labels: Indices, num_clients: int | None, rng: Rng) -> list[Indices]:
        owned = by_owner(labels)
        fit = np.flatnonzero([examples.size >= self.min_size for examples in owned])
        bound = f"at most {max(examples.size for examples in owned)}, the most examples of an owner"
        self._require(fit.size > 0, "min_size", bound, "nobody would take part")
        num_clients = fit.size if num_clients is None else num_clients
        what = f"the owners of at least partition.min_size={self.min_size} examples, or left out"
        require_clients(num_clients, fit.size, what, "a client is one of them")
        if num_clients < fit.size:
            message = (
                "num_clients=%d is below the %d owners of the data: the others' examples are unused"
            )
            log.warning(message, num_clients, fit.size)
        return [owned[owner] for owner in np.sort(rng.choice(fit, num_clients, replace=False))]
