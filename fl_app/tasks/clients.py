"""Clients as a user gives them: a partition, the owner of each example, or indices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.tasks.partition import PARTITIONS, Indices, Partitioner


def partitioner_of(clients: Any) -> Partitioner | None:
    """The partition that `clients` names or is; None if it says itself who has what.

    Raises:
        ValueError: no partition has this name, or it needs owners.
    """
    if isinstance(clients, str):
        if clients not in PARTITIONS:
            raise ValueError(
                f"clients={clients!r} must be one of {', '.join(PARTITIONS)}, an object of "
                "fl_app.tasks.partition, an array with a client id for each example, or one index "
                "array for each client"
            )
        clients = PARTITIONS[clients]()
    if not callable(clients):
        return None
    if getattr(clients, "by_owner", False):
        raise ValueError(
            f"clients={clients} needs the owner of each example: give the owners themselves, "
            "clients=<array with an id for each example>"
        )
    partitioner: Partitioner = clients
    return partitioner


def given_partition(clients: Any, num_examples: int) -> list[Indices]:
    """Each client's indices in ascending order, from ids or index arrays.

    Args:
        clients: a client id for each example, shape ``(n,)``, numbers or texts; each distinct id is
            a client, in the order of the ids. Or one index array for each client.
        num_examples: n.

    Raises:
        ValueError: the number of ids is another, an id is missing, an index is out of range, or a
            client has no examples.
    """
    import pandas as pd

    arrays = _index_arrays(clients)
    if arrays is not None:
        return [_indices(own, client_id, num_examples) for client_id, own in enumerate(arrays)]
    ids = np.asarray(clients)
    if ids.shape not in ((num_examples,), (num_examples, 1)):
        raise ValueError(
            f"clients has the shape {ids.shape} and must have ({num_examples},), a client id for "
            "each training example, or be a list of index arrays"
        )
    ids = ids.reshape(-1)
    missing = pd.isna(ids)
    if missing.any():
        row = missing.argmax()
        raise ValueError(
            f"clients[{row}] is {ids[row]} and must be an id: nobody would have this example"
        )
    if ids.dtype.kind == "O":
        ids = ids.astype(str)
    _, places, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    return np.split(places.argsort(kind="stable"), sizes.cumsum()[:-1])


def _index_arrays(clients: Any) -> Sequence[Any] | None:
    if isinstance(clients, list | tuple) and any(np.ndim(own) == 1 for own in clients):
        return clients
    if isinstance(clients, np.ndarray) and clients.ndim == 2 and clients.shape[1] > 1:
        return list(clients)
    return None


def _indices(own: Any, client_id: int, num_examples: int) -> Indices:
    indices: NDArray[Any] = np.asarray(own)
    if indices.size == 0:
        raise ValueError(f"clients[{client_id}] has no examples: it could not train")
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(
            f"clients[{client_id}] must be an array of indices of training examples, and is of "
            f"type {indices.dtype} with the shape {indices.shape}"
        )
    wrong = indices[(indices < 0) | (indices >= num_examples)]
    if wrong.size:
        raise ValueError(
            f"clients[{client_id}] has the index {wrong[0]} and must have indices from 0 to "
            f"{num_examples - 1}, those of the training examples"
        )
    indices = np.sort(indices).astype(np.int64)
    twice = indices[:-1][indices[:-1] == indices[1:]]
    if twice.size:
        raise ValueError(
            f"clients[{client_id}] has the index {twice[0]} twice: it would train on an example "
            "that it keeps for validation"
        )
    return indices
