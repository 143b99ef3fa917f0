"""The protocol of partitioners, and the checks of their results."""

from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require, require_at_least

Indices: TypeAlias = NDArray[np.int64]

LABEL = "label"  # name of the classes, where they come from no column

STREAM = 0x7061_7274_6974_696F  # keeps the partition's random numbers apart from all others


class Partitioner(Protocol):
    """Distributes training examples over clients."""

    def __call__(
        self, labels: Indices, num_clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        """One array of indices into `labels` per client; equal generators give equal partitions.

        Args:
            labels: classes of the training examples, shape ``(n,)``, or their owners if the
                partitioner has ``by_owner``.
            num_clients: N, 1 <= N <= n.
            rng: the only source of randomness.

        Raises:
            ValueError: these examples cannot be distributed over `num_clients` clients.
        """
        ...


def make_partition(
    partitioner: Partitioner,
    labels: Indices,
    num_clients: int | None,
    seed: int,
    owners: Indices | None = None,
    column: NDArray[Any] | None = None,
) -> list[Indices]:
    """A partition in which every client has data, with each client's indices in ascending order.

    Args:
        partitioner: distributes the examples.
        labels: classes of the training examples, shape ``(n,)``.
        num_clients: N >= 1; None = as many as a partitioner makes that ``decides``.
        seed: seed of the run.
        owners: the writer, speaker or person of each example, shape ``(n,)``; None = unknown.
        column: values of the column that the partitioner has in ``partition_by``, shape ``(n,)``;
            None = it has none, or the data have no columns.

    Raises:
        ValueError: there are fewer examples than clients, a client gets none, or the partitioner
            needs owners or a column, which are unknown.
    """
    if num_clients is not None:
        require_at_least("num_clients", num_clients, 1, "there would be no client to train")
    require(
        num_clients is None or num_clients <= labels.size,
        "num_clients",
        num_clients,
        f"at most {labels.size}, the number of training examples",
        "some clients would have no data",
    )
    deal_by: NDArray[Any] = labels
    by = getattr(partitioner, "partition_by", None)
    if column is not None:
        deal_by = column
    elif by not in (None, LABEL):
        raise ValueError(
            f"partition.partition_by={by} must be null or {LABEL}: only a table (task=csv) and a "
            "data set of Hugging Face (task=huggingface) have columns with names"
        )
    elif getattr(partitioner, "by_owner", False):
        if owners is None:
            raise ValueError(
                f"partition={partitioner} needs the owner of each training example, and this "
                "task's data do not have it: see docs/data.md for data with owners"
            )
        deal_by = owners
    # None is for those that decide.
    parts = partitioner(deal_by, cast(int, num_clients), np.random.default_rng((seed, STREAM)))
    empty = [client_id for client_id, indices in enumerate(parts) if indices.size == 0]
    if empty:
        names = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
        raise ValueError(
            f"partition={partitioner} leaves {len(empty)} of {len(parts)} clients without "
            f"training examples (clients {names}): they could not train"
        )
    return [np.sort(indices) for indices in parts]


def classes_of(labels: Indices, rng: np.random.Generator) -> list[Indices]:
    """For each class in `labels`, an array of its indices in random order."""
    return [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]


def check_max_size(max_size: int | None, min_size: int = 1) -> None:
    """Refuse a largest number of examples per client that is below the least.

    Raises:
        ValueError: naming key, value and bound.
    """
    if max_size is not None:
        require_at_least(
            "partition.max_size", max_size, min_size, "clients would have too few examples"
        )


def capped(parts: list[Indices], max_size: int | None, rng: np.random.Generator) -> list[Indices]:
    """The parts with at most `max_size` examples each, drawn at random; None = as they are."""
    if max_size is None:
        return parts
    return [
        part if part.size <= max_size else rng.choice(part, max_size, replace=False)
        for part in parts
    ]
