"""Users' data as tensors of a task: arrays of any kind, data sets of torch and Hugging Face."""

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl_app.core.errors import explaining
from fl_app.core.types import Array, Indices
from fl_app.tasks.encoding import KINDS
from fl_app.tasks.objective import Classification, Loss, Objective, objective_of
from fl_app.tasks.partition import by_owner
from fl_app.tasks.readers import channels_first
from fl_app.tasks.scaling import moments_of
from fl_app.tasks.table import encode_targets, fit_targets, in_float32

TESTS = ("test", "validation", "valid", "val")  # the first of these splits is the test set
Values: TypeAlias = Any  # what numpy.asarray takes, or a tensor


# -- arrays ----------------------------------------------------------------------------------------


def pair(x: Any, y: Any, x_name: str, y_name: str) -> tuple[Array, Array]:
    """Inputs (finite numbers) and targets, as arrays with a row for each example.

    Args:
        x: inputs, as NumPy, torch or pandas has them; shape ``(n, ...)``, n >= 1.
        y: targets, shape ``(n, ...)``.
        x_name: what messages call the inputs.
        y_name: what they call the targets.

    Raises:
        ValueError: lengths differ, or an input is missing, infinite in float32, or no number.
    """
    inputs, targets = _rows(x, x_name), _rows(y, y_name)
    if len(inputs) != len(targets) or inputs.size == 0:
        raise ValueError(
            f"{x_name} has the shape {inputs.shape} and {y_name} {targets.shape}: each example "
            "needs numbers and a target, and there must be one"
        )
    if inputs.dtype.kind not in "biuf":
        text = next(
            (v for v in inputs.flat if not isinstance(v, int | float | np.number)), "object"
        )
        raise ValueError(
            f"{x_name} has {str(text)!r} where numbers are needed: turn texts and dates into "
            "numbers first, with pandas.get_dummies, an encoder of scikit-learn or a tokenizer"
        )
    largest = np.finfo(np.float32).max
    if not (inputs.max() <= largest and inputs.min() >= -largest):
        place = ", ".join(map(str, np.argwhere(~(np.abs(inputs) <= largest))[0]))
        raise ValueError(
            f"{x_name}[{place}] must be a finite float32: fill it in, scale it, or remove the "
            "row, since every model would become NaN"
        )
    return inputs[:, None] if inputs.ndim == 1 else inputs, targets


def _rows(values: Any, name: str) -> Array:
    """The values as an array with a row for each example."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values  # NumPy has none
    with explaining(f"{name} is no array, since its rows differ in shape"):
        array = np.asarray(values)
        if array.dtype.kind == "O" and not any(isinstance(value, str) for value in array.flat):
            plain = np.array(array.tolist())  # such as numbers of a table that also has texts
            array = plain if plain.dtype.kind in "biuf" else array
    if array.ndim == 0:
        raise ValueError(f"{name} is a {type(values).__name__} and must be an array of examples")
    return array


def table_of(targets: Array, name: str) -> pd.DataFrame:
    """Targets of shape ``(n,)`` or ``(n, k)`` as columns of a table.

    Raises:
        ValueError: they have another shape, or a value is missing.
    """
    if targets.ndim > 2:
        raise ValueError(
            f"{name} has the shape {targets.shape} and must have (n,) or (n, k): a class or k "
            "numbers for each example; sequences of classes need objective=Classification(..., "
            "sequences=True)"
        )
    rows = targets.reshape(len(targets), -1)
    columns = [f"{name}[{k}]" for k in range(rows.shape[1])] if rows.shape[1] > 1 else [name]
    table = pd.DataFrame(rows, columns=columns)
    gaps = table.isna().any(axis=1)
    if gaps.any():
        raise ValueError(f"{name}[{gaps.argmax()}] has no value: fill it in, or remove the row")
    return table


def examples_of(
    x_train: Values,
    y_train: Values,
    x_test: Values | None,
    y_test: Values | None,
    objective: str | Objective | None,
    loss: Loss | None,
    *,
    tokens: bool,
    images: bool,
) -> dict[str, Any]:
    """Fields of a task: tensors, and the objective that is given or follows from the targets.

    The other arguments are those of `fl_app.tasks.task.Task.from_arrays`; `tokens` says whether the
    model takes integers for tokens, `images` whether it takes images with their channels first.

    Raises:
        ValueError: lengths or shapes differ, a value is missing, infinite or a text where numbers
            are needed, there is only one class, or the targets do not fit the objective.
    """
    if (x_test is None) != (y_test is None):
        raise ValueError("x_test and y_test belong together: give both, or neither of them")
    names, test_names = ([*getattr(part, "columns", ())] for part in (x_train, x_test))
    if names and test_names and names != test_names:
        raise ValueError("x_test must have x_train's columns in its order: give x_test[[*x_train]]")
    x, y = pair(x_train, y_train, "x_train", "y_train")
    inputs = _inputs(channels_first(x) if images else x, "x_train", tokens)
    test_inputs, test_y = None, None
    if x_test is not None:
        x, test_y = pair(x_test, y_test, "x_test", "y_test")
        test_inputs = _inputs(channels_first(x) if images else x, "x_test", tokens)
        if inputs.dtype == torch.float32 and test_inputs.dtype == torch.int64:
            test_inputs = test_inputs.float()
        test_form, train_form = (
            (*part.shape[1:], part.dtype, *targets.shape[1:])
            for part, targets in ((test_inputs, test_y), (inputs, y))
        )
        if test_form != train_form:
            raise ValueError(
                f"x_test and y_test have shapes and type {test_form}, and must have those of "
                f"x_train and y_train, {train_form}: one model takes both"
            )
    objective = objective if isinstance(objective, Objective) else _objective(objective, y, test_y)
    if loss is not None:
        objective = objective.with_loss(loss)
    targets = _targets(y, "y_train", objective)
    test_targets = None if test_y is None else _targets(test_y, "y_test", objective)
    tests = {"test_inputs": test_inputs, "test_targets": test_targets}
    return {"objective": objective, "inputs": inputs, "targets": targets, **tests}


def _inputs(array: Array, name: str, tokens: bool) -> Tensor:
    """Numbers as float32, pixels (bytes in images) as they are, tokens as int64."""
    if array.dtype != np.uint8 or array.ndim == 2:
        are_tokens = tokens and array.dtype.kind in "iu" and array.dtype != np.uint8
        array = array.astype(np.int64, copy=False) if are_tokens else in_float32(array, name)
    return _tensor(array)


def _tensor(array: Array) -> Tensor:
    """A tensor on the same memory; a copy where torch cannot share it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files mapped read-only: nobody writes to the tensor
        return torch.from_numpy(np.ascontiguousarray(array))


def _objective(kind: str | None, y: Array, test_y: Array | None) -> Objective:
    """The objective of a kind, with as many outputs as the targets need."""
    if kind not in (None, *KINDS):
        raise ValueError(f"objective={kind} must be one of {', '.join(KINDS)}, or an Objective")
    if kind is None:  # an array has a type, which says more than its values
        several = y.ndim > 1 and y.shape[1] > 1
        kind = "regression" if several or y.dtype.kind == "f" else "classification"
    every = table_of(np.concatenate([y] if test_y is None else [y, test_y]), "y_train")
    kind, outputs = fit_targets(every, kind, "Task.from_arrays")
    moments: tuple[tuple[float, ...], tuple[float, ...]] = (), ()
    if kind == "regression":
        moments = moments_of(encode_targets(every[: len(y)], kind, outputs, "Task.from_arrays"))
    return objective_of(kind, outputs, *moments)


def _targets(y: Array, name: str, objective: Objective) -> Tensor:
    """Targets as the objective needs them."""
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


def partition_of(clients: Any, num_examples: int) -> list[Indices]:
    """Each client's indices in ascending order.

    Args:
        clients: a client id for each example, shape ``(n,)``, numbers or texts; each distinct id is
            a client, in the order of the ids.
        num_examples: n.

    Raises:
        ValueError: the number of ids is not `num_examples`, or an id is missing.
    """
    ids = owners_of(np.asarray(clients), num_examples, "clients")
    if ids.dtype.kind == "O":  # as pandas has them: numbers remain numbers
        plain = np.array(ids.tolist())
        ids = plain if plain.ndim == 1 else ids.astype(str)
    return by_owner(ids)


def owners_of(ids: Array, num_examples: int, name: str) -> Array:
    """The client id of each training example, shape ``(n,)``.

    Args:
        ids: numbers or texts, shape ``(n,)`` or ``(n, 1)``.
        num_examples: n.
        name: what messages call them.

    Raises:
        ValueError: the number of ids is not `num_examples`, or an id is missing.
    """
    if ids.shape not in ((num_examples,), (num_examples, 1)):
        raise ValueError(
            f"{name} has the shape {ids.shape} and must have ({num_examples},), a client id for "
            "each training example; without it, partition= and num_clients= of a run distribute "
            "the examples"
        )
    ids = ids.reshape(-1)
    missing = pd.isna(ids) | (ids.astype(str) == "")
    if missing.any():
        row = missing.argmax()
        value = str(ids[row]) or "an empty text"
        raise ValueError(f"{name}[{row}] is {value}: nobody would have this example")
    return ids


# -- data sets -------------------------------------------------------------------------------------


def read_pairs(data: Any, name: str) -> tuple[Array, Array]:
    """Inputs and targets of a map-style data set of torch.

    Args:
        data: has ``len()``, and by index pairs of input and target.
        name: for messages.

    Raises:
        ValueError: it has no length, an item is no pair, or its inputs differ in shape.
    """
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        problem = "has no length or no items by number: give list(...) of it, or its .dataset"
        raise ValueError(f"{name} is a {type(data).__name__}, which {problem}")
    items = [data[place] for place in range(len(data))]
    for place, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(
                f"{name}[{place}] is a {type(item).__name__} and must be a pair of input and target"
            )
    inputs, targets = ([_array(item[place]) for item in items] for place in (0, 1))
    return _stacked(inputs, f"inputs of {name}"), _stacked(targets, f"targets of {name}")


def splits_of(data: Any, name: str = "data") -> tuple[Any, Any | None]:
    """Training set and test set (or None) of a data set of Hugging Face or of flwr-datasets.

    Raises:
        ValueError: there is no training set.
    """
    if hasattr(data, "load_split"):  # a FederatedDataset
        try:
            return data.load_split("train"), data.load_split("test")
        except ValueError:
            return data.load_split("train"), None
    splits = data if isinstance(data, dict) else {"train": data}
    if "train" not in splits:
        raise ValueError(
            f"{name} has the splits {', '.join(splits) or 'none'} and must have 'train'"
        )
    tests = [splits[name] for name in TESTS if name in splits]
    return splits["train"], tests[0] if tests else None


def rows_by_client(partitioner: Any) -> tuple[Any, Indices]:
    """The rows of all partitions of a partitioner of flwr-datasets, and the client of each row.

    Raises:
        ValueError: the partitioner distributes columns.
    """
    from datasets import concatenate_datasets

    parts = [partitioner.load_partition(place) for place in range(partitioner.num_partitions)]
    kind = type(partitioner).__name__
    if any(part.column_names != partitioner.dataset.column_names for part in parts):
        raise ValueError(
            f"clients={kind} distributes columns, and must distribute examples: clients train one "
            "model, whose inputs are all columns"
        )
    sizes = [len(part) for part in parts]
    return concatenate_datasets(parts), np.repeat(np.arange(len(parts)), sizes)


def read_columns(data: Any, inputs: str | Sequence[str], target: str) -> tuple[Array, Array]:
    """Inputs and targets of a `datasets.Dataset`.

    Args:
        data: the data set.
        inputs: one column, or several whose numbers are put together.
        target: column of the targets; classes are returned by name.

    Raises:
        ValueError: a column is missing, or its values differ in shape.
    """
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    columns = [column_of(data, name) for name in names]
    if len(columns) == 1:
        return columns[0], column_of(data, target)
    if any(column.dtype.kind not in "biuf" for column in columns):
        columns = [column.astype(object) for column in columns]  # else numbers would become texts
    rows = [column.reshape(len(column), -1) for column in columns]
    return np.concatenate(rows, 1), column_of(data, target)


def column_of(data: Any, name: str) -> Array:
    """A column of a `datasets.Dataset`, shape ``(n, ...)``.

    Classes are returned by name, a missing one as None.

    Raises:
        ValueError: no column has this name, or its values differ in shape.
    """
    if name not in data.column_names:
        raise ValueError(f"there is no column {name!r}: there are {', '.join(data.column_names)}")
    column = data.select_columns([name])
    if type(data.features[name]).__name__ == "Image":
        return _stacked([_array(row[name]) for row in column], f"images of the column {name!r}")
    if classes := class_names(data, name):
        rows = column.with_format(None)[:][name]
        return np.array([*classes, None], object)[[-1 if row is None else row for row in rows]]
    feature = data.features[name]
    while hasattr(feature, "feature"):  # of a list
        feature = feature.feature
    double = getattr(feature, "dtype", "") == "float64"  # else rounded unchecked
    stored = column.with_format("numpy", **{"dtype": "float64"} if double else {})[:][name]
    values = stored if isinstance(stored, np.ndarray) else np.asarray(stored, object)
    if values.dtype == object and values.size and np.ndim(values.flat[0]) > 0:
        values = _stacked([np.asarray(v) for v in values], f"values of the column {name!r}")
    return values


def class_names(data: Any, name: str) -> list[str] | None:
    """Names of the classes of a `datasets.ClassLabel`; None = the column is none."""
    return getattr(data.features[name], "names", None)


def _array(value: Any) -> Any:
    """A value as an array, images with their channels first."""
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if hasattr(value, "getbands"):  # an image of PIL
        from fl_app.tasks.pictures import pixels_of  # loads PIL

        return pixels_of(value, "L" if value.mode in ("1", "L", "I;16") else "RGB")
    return np.asarray(value)


def _stacked(arrays: Sequence[Any], what: str) -> Array:
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise ValueError(
            f"the {what} have different shapes, such as {shapes[0]} and {shapes[1]}: make them "
            "alike first"
        )
    return np.stack(arrays) if arrays else np.empty(0)
