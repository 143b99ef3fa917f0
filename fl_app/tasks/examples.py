"""A user's arrays as the tensors of a task, checked before anything is trained."""

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_app.tasks.items import pair, table_of
from fl_app.tasks.objective import Classification, Loss, Objective, objective_of
from fl_app.tasks.partition import Indices
from fl_app.tasks.partition.base import by_owner
from fl_app.tasks.scaling import moments_of
from fl_app.tasks.schema import KINDS

Values: TypeAlias = Any  # what numpy.asarray takes, or a tensor


def examples_of(
    x_train: Values,
    y_train: Values,
    x_test: Values | None,
    y_test: Values | None,
    objective: str | Objective | None,
    loss: Loss | None,
    *,
    tokens: bool,
) -> dict[str, Any]:
    """Fields of a task: tensors, and the objective that is given or follows from the targets.

    The other arguments are those of `fl_app.tasks.task.Task.from_arrays`; `tokens` says whether the
    model takes integers for tokens.

    Raises:
        ValueError: lengths or shapes differ, a value is missing, infinite or a text where numbers
            are needed, there is only one class, or the targets do not fit the objective.
    """
    if (x_test is None) != (y_test is None):
        raise ValueError("x_test and y_test belong together: give both, or neither of them")
    x, y = pair(x_train, y_train, "x_train", "y_train")
    inputs = _inputs(x, tokens)
    test_inputs, test_y = None, None
    if x_test is not None:
        x, test_y = pair(x_test, y_test, "x_test", "y_test")
        test_inputs = _inputs(x, tokens)
        if inputs.dtype == torch.float32 and test_inputs.dtype == torch.int64:
            test_inputs = test_inputs.float()
        own, others = (
            (*part.shape[1:], part.dtype, *targets.shape[1:])
            for part, targets in ((test_inputs, test_y), (inputs, y))
        )
        if own != others:
            raise ValueError(
                f"x_test and y_test have shapes and type {own}, and must have those of x_train and "
                f"y_train, {others}: one model takes both"
            )
    made = objective if isinstance(objective, Objective) else _objective(objective, y, test_y)
    if loss is not None:
        made = made.with_loss(loss)
    targets = _targets(y, "y_train", made)
    test_targets = None if test_y is None else _targets(test_y, "y_test", made)
    tests = {"test_inputs": test_inputs, "test_targets": test_targets}
    return {"objective": made, "inputs": inputs, "targets": targets, **tests}


def _inputs(array: NDArray[Any], tokens: bool) -> Tensor:
    """Numbers as float32, pixels (bytes in images) as they are, tokens as int64."""
    if array.dtype != np.uint8 or array.ndim == 2:
        are_tokens = tokens and array.dtype.kind in "iu" and array.dtype != np.uint8
        array = array.astype(np.int64 if are_tokens else np.float32, copy=False)
    return _tensor(array)


def _tensor(array: NDArray[Any]) -> Tensor:
    """A tensor on the same memory; a copy where torch cannot share it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files mapped read-only: nobody writes to the tensor
        return torch.from_numpy(np.ascontiguousarray(array))


def _objective(kind: str | None, y: NDArray[Any], test_y: NDArray[Any] | None) -> Objective:
    """The objective of a kind, as large as the targets need it."""
    from fl_app.tasks.table import encode_targets, fit_targets

    if kind not in (None, *KINDS):
        raise ValueError(f"objective={kind} must be one of {', '.join(KINDS)}, or an Objective")
    if kind is None:  # an array has a type, which says more than its values
        several = y.ndim > 1 and y.shape[1] > 1
        kind = "regression" if several or y.dtype.kind == "f" else "classification"
    every = table_of(np.concatenate([y] if test_y is None else [y, test_y]), "y_train")
    kind, outputs = fit_targets(every, kind, "Task.from_arrays")
    moments: tuple[tuple[float, ...], ...] = ()
    if kind == "regression":
        moments = moments_of(encode_targets(every[: len(y)], kind, outputs, "Task.from_arrays"))
    return objective_of(kind, outputs, *moments)


def _targets(y: NDArray[Any], name: str, objective: Objective) -> Tensor:
    """Targets as the objective needs them."""
    from fl_app.tasks.table import encode_targets

    outputs: Sequence[Any] = range(objective.num_outputs)
    if isinstance(objective, Classification):
        if objective.sequences:
            tokens = np.ascontiguousarray(y.astype(np.int64))
            if not np.isin(tokens, outputs).all():
                raise ValueError(f"{name} must have classes from 0 to {objective.num_outputs - 1}")
            return torch.from_numpy(tokens)
        outputs = objective.classes or outputs
    names = [*map(str, outputs)]
    return _tensor(encode_targets(table_of(y, name), objective.kind, names, "Task.from_arrays"))


# -- clients ---------------------------------------------------------------------------------------


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

    if isinstance(clients, list | tuple) and any(np.ndim(own) == 1 for own in clients):
        return [_indices(own, client_id, num_examples) for client_id, own in enumerate(clients)]
    ids = np.asarray(clients)
    if ids.shape not in ((num_examples,), (num_examples, 1)):
        raise ValueError(
            f"clients has the shape {ids.shape} and must have ({num_examples},), a client id for "
            "each training example, or be a list of index arrays; without clients=, the words "
            "partition= and num_clients= of a run deal the examples out"
        )
    ids = ids.reshape(-1)
    missing = pd.isna(ids)
    if missing.any():
        row = missing.argmax()
        raise ValueError(f"clients[{row}] is {ids[row]}: nobody would have this example")
    return by_owner(ids.astype(str) if ids.dtype.kind == "O" else ids)


def _indices(own: Sequence[int], client_id: int, num_examples: int) -> Indices:
    indices = np.asarray(own)
    whole = indices.ndim == 1 and indices.size > 0 and indices.dtype.kind in "iu"
    if not whole or indices.min() < 0 or indices.max() >= num_examples:
        raise ValueError(
            f"clients[{client_id}] must be an array of indices of training examples, from 0 to "
            f"{num_examples - 1}, at least one"
        )
    if np.unique(indices).size < indices.size:
        raise ValueError(
            f"clients[{client_id}] has an index twice: it would train on an example that it keeps "
            "for validation"
        )
    return np.sort(indices).astype(np.int64)
