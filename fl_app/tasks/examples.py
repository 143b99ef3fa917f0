"""A user's arrays as the tensors of a task, checked before anything is trained."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_app.tasks.objective import Classification, Loss, Objective, objective_of
from fl_app.tasks.partition import PARTITIONS, Indices, Partitioner
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
    inputs, y = _pair(x_train, y_train, "train", tokens)
    test_inputs, test_y = None, None
    if x_test is not None:
        test_inputs, test_y = _pair(x_test, y_test, "test", tokens)
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
    made = objective if isinstance(objective, Objective) else None
    if made is None:
        made = _objective(str(objective or "auto"), y, test_y, standardise=loss is None)
    if loss is not None:
        made = replace(made, criterion=loss)
    targets = _targets(y, "y_train", made)
    if made.kind == "classification" and bool((targets == targets.flatten()[0]).all()):
        raise ValueError("y_train has only one class: there would be nothing to tell apart")
    test_targets = None if test_y is None else _targets(test_y, "y_test", made)
    tests = {"test_inputs": test_inputs, "test_targets": test_targets}
    return {"objective": made, "inputs": inputs, "targets": targets, **tests}


def _pair(x: Values, y: Values, part: str, tokens: bool) -> tuple[Tensor, NDArray[Any]]:
    """Inputs and targets of the training or test set, of the same number of examples."""
    inputs, targets = _inputs(x, f"x_{part}", tokens), _raw(y, f"y_{part}")
    if len(inputs) != len(targets) or inputs.numel() == 0:
        raise ValueError(
            f"x_{part} has the shape {tuple(inputs.shape)} and y_{part} {targets.shape}: each "
            "example needs numbers and a target, and there must be one"
        )
    return inputs, targets


def _inputs(values: Values, name: str, tokens: bool) -> Tensor:
    """Numbers as float32, pixels (bytes in images) as they are, tokens as int64."""
    array = _raw(values, name)
    if array.dtype.kind not in "biuf":
        text = next((v for v in array.flat if not isinstance(v, int | float | np.number)), "object")
        raise ValueError(
            f"{name} has {str(text)!r} where numbers are needed: turn texts and dates into numbers "
            "first, with pandas.get_dummies, an encoder of scikit-learn or a tokenizer"
        )
    pixels = array.dtype == np.uint8 and array.ndim > 2
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            array = array.astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            place = ", ".join(map(str, np.argwhere(~np.isfinite(array))[0]))
            raise ValueError(
                f"{name}[{place}] must be a finite float32: fill it in, scale it, or remove the "
                "row, since every model would become NaN"
            )
    elif not pixels:
        is_number = array.dtype in (np.bool_, np.uint8) or not tokens
        array = array.astype(np.float32 if is_number else np.int64, copy=False)
    return _tensor(array[:, None] if array.ndim == 1 else array)  # one number for each example


def _raw(values: Values, name: str) -> NDArray[Any]:
    """The values as an array with a row for each example."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        if values.dtype in (torch.bfloat16, torch.float16):  # NumPy does not know the former
            values = values.float()
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and not any(isinstance(value, str) for value in array.flat):
            plain = np.array(array.tolist())  # such as numbers of a table that also has texts
            array = plain if plain.dtype.kind in "biuf" else array
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name} is no array, since its rows differ in shape: {error}") from None
    if array.ndim == 0:
        raise ValueError(f"{name} is a {type(values).__name__} and must be an array of examples")
    return array


def _tensor(array: NDArray[Any]) -> Tensor:
    """A tensor on the same memory; a copy where torch cannot share it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files mapped read-only: nobody writes to the tensor
        return torch.from_numpy(np.ascontiguousarray(array))


# -- targets ---------------------------------------------------------------------------------------


def _table(y: NDArray[Any], name: str) -> Any:
    """Targets as a table of pandas, without missing values."""
    import pandas as pd

    if y.ndim > 2:
        raise ValueError(
            f"{name} has the shape {y.shape} and must have (n,) or (n, k): a class or k numbers "
            "for each example; sequences of classes need objective=Classification(..., "
            "sequences=True)"
        )
    rows = y.reshape(len(y), -1)
    columns = [f"{name}[{k}]" for k in range(rows.shape[1])] if rows.shape[1] > 1 else [name]
    table = pd.DataFrame(rows, columns=columns)
    gaps = table.isna().any(axis=1)
    if gaps.any():
        raise ValueError(f"{name}[{gaps.argmax()}] has no value: fill it in, or remove the row")
    return table


def _objective(
    kind: str, y: NDArray[Any], test_y: NDArray[Any] | None, *, standardise: bool
) -> Objective:
    """The objective of a kind, as large as the targets need it."""
    from fl_app.tasks.table import encode_targets, fit_targets

    if kind not in ("auto", *KINDS):
        raise ValueError(f"objective={kind} must be one of {', '.join(KINDS)}, or an Objective")
    every = np.concatenate([y] if test_y is None else [y, test_y])
    table = _table(every, "y_train")
    if kind == "auto" and table.shape[1] == 1:
        if y.dtype.kind == "f":  # an array has a type, which says more than its values
            kind = "regression"
        elif y.dtype.kind in "iu":
            kind = "classification"
    kind, outputs = fit_targets(table, kind, "Task.from_arrays")
    if kind == "classification":
        return objective_of(kind, outputs)
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    if kind == "regression" and standardise:
        numbers = encode_targets(table[: len(y)], kind, outputs, "Task.from_arrays")
        mean, deviation = moments_of(numbers)
    return objective_of(kind, (), mean, deviation, len(outputs))


def _targets(y: NDArray[Any], name: str, objective: Objective) -> Tensor:
    """Targets as the objective needs them."""
    from fl_app.tasks.table import encode_targets

    outputs = tuple(map(str, range(objective.num_outputs)))
    if isinstance(objective, Classification):
        if objective.sequences:
            tokens = np.ascontiguousarray(y.astype(np.int64))
            if not np.isin(tokens, range(objective.num_outputs)).all():
                raise ValueError(f"{name} must have classes from 0 to {objective.num_outputs - 1}")
            return torch.from_numpy(tokens)
        outputs = tuple(map(str, objective.classes)) or outputs
    encoded = encode_targets(_table(y, name), objective.kind, outputs, "Task.from_arrays")
    return _tensor(encoded)


# -- clients ---------------------------------------------------------------------------------------


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
        raise ValueError(f"clients={clients} needs owners: give an array with an id per example")
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

    if isinstance(clients, list | tuple) and any(np.ndim(own) == 1 for own in clients):
        return [_indices(own, client_id, num_examples) for client_id, own in enumerate(clients)]
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
