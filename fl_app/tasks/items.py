"""Data sets of torch and of Hugging Face as arrays."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


def read_pairs(data: Any, name: str) -> tuple[Array, Array]:
    """Inputs and targets of a map-style data set of torch.

    Args:
        data: has ``len()``, and by index pairs of input and target.
        name: for messages.

    Raises:
        ValueError: it is no such data set, or its inputs differ in shape.
    """
    try:
        count = len(data)
    except TypeError:
        raise ValueError(
            f"{name} is a {type(data).__name__} without len(), and must be a map-style data set: "
            "read a stream into one first"
        ) from None
    inputs: list[Any] = []
    targets: list[Any] = []
    for place in range(count):
        item = data[place]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(
                f"{name}[{place}] is a {type(item).__name__} and must be a pair of input and target"
            )
        inputs.append(_array(item[0]))
        targets.append(_array(item[1]))
    return _stacked(inputs, f"inputs of {name}"), _stacked(targets, f"targets of {name}")


def splits_of(data: Any) -> tuple[Any, Any | None]:
    """Training set and test set (or None) of a data set of Hugging Face or of flwr-datasets.

    Raises:
        ValueError: there is no training set, or the data are a stream.
    """
    if hasattr(data, "load_split"):  # a FederatedDataset
        try:
            return data.load_split("train"), data.load_split("test")
        except ValueError:
            return data.load_split("train"), None
    splits = data if isinstance(data, dict) else {"train": data}
    if "train" not in splits:
        raise ValueError(f"data has the splits {', '.join(splits) or 'none'} and must have 'train'")
    for name in ("train", "test"):
        split = splits.get(name)
        if split is not None and not (hasattr(split, "features") and hasattr(split, "__len__")):
            raise ValueError(
                f"the split {name!r} is a {type(split).__name__} and must be a datasets.Dataset, "
                "which datasets.load_dataset gives without streaming"
            )
    return splits["train"], splits.get("test")


def dealt(partitioner: Any) -> tuple[Any, NDArray[np.int64]]:
    """The rows of all partitions of a partitioner of flwr-datasets, and the client of each row.

    Raises:
        ValueError: the partitioner distributes columns, or a client gets nothing.
    """
    from datasets import concatenate_datasets

    parts = [partitioner.load_partition(place) for place in range(partitioner.num_partitions)]
    name, sizes = type(partitioner).__name__, [len(part) for part in parts]
    if any(part.column_names != partitioner.dataset.column_names for part in parts):
        raise ValueError(
            f"clients={name} distributes columns, and must distribute examples: clients train one "
            "model, whose inputs are all columns"
        )
    if 0 in sizes:
        raise ValueError(f"clients={name} leaves client {sizes.index(0)} without examples")
    return concatenate_datasets(parts), np.repeat(np.arange(len(parts)), sizes)


def read_columns(data: Any, inputs: str | Sequence[str], target: str) -> tuple[Array, Array]:
    """Inputs and targets of a `datasets.Dataset`.

    Args:
        data: the data set.
        inputs: one column, or several whose numbers are put together.
        target: column of the targets; classes are given by their names.

    Raises:
        ValueError: a column is missing, or its values differ in shape.
    """
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    columns = [column_of(data, name) for name in names]
    if len(columns) == 1:
        return columns[0], column_of(data, target)
    for name, column in zip(names, columns, strict=True):
        if column.ndim > 2:
            raise ValueError(
                f"the column {name!r} has values of shape {column.shape[1:]}: columns that are put "
                "together must have numbers or lists of numbers"
            )
    if any(column.dtype.kind not in "biuf" for column in columns):
        columns = [column.astype(object) for column in columns]  # else numbers would become texts
    rows = [column.reshape(len(column), -1) for column in columns]
    return np.concatenate(rows, 1), column_of(data, target)


def column_of(data: Any, name: str) -> Array:
    """A column of a `datasets.Dataset`, shape ``(n, ...)``; classes are given by their names.

    Raises:
        ValueError: there is none of this name, or its values differ in shape.
    """
    if name not in data.column_names:
        raise ValueError(f"there is no column {name!r}: there are {', '.join(data.column_names)}")
    feature, column = data.features[name], data.select_columns([name])
    if type(feature).__name__ == "Image":
        return _stacked([_array(row[name]) for row in column], f"images of the column {name!r}")
    if labels := label_names(data, name):
        rows = column.with_format(None)[:][name]
        return np.array([[place in row for place in range(len(labels))] for row in rows])
    if classes := class_names(data, name):
        rows = column.with_format(None)[:][name]
        return np.array([*classes, None], object)[[-1 if row is None else row for row in rows]]
    values = column.with_format("numpy")[:][name]
    array = values if isinstance(values, np.ndarray) else np.asarray(values, object)
    if array.dtype == object and array.size and np.ndim(array.flat[0]) > 0:
        array = _stacked([np.asarray(value) for value in array], f"values of the column {name!r}")
    return array


def class_names(data: Any, name: str) -> list[str] | None:
    """Names of the classes of a `datasets.ClassLabel`; None = the column is none."""
    names: list[str] | None = getattr(data.features[name], "names", None)
    return names


def label_names(data: Any, name: str) -> list[str] | None:
    """Names of the classes that a column of lists holds; None = it holds something else."""
    names: list[str] | None = getattr(getattr(data.features[name], "feature", None), "names", None)
    return names


def _array(value: Any) -> Any:
    """A value as an array, images with their channels first."""
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if hasattr(value, "getbands"):  # an image of PIL
        from fl_app.tasks.pictures import pixels_of  # loads PIL

        return pixels_of(value, "L" if value.mode in ("1", "L", "I;16") else "RGB")
    return np.asarray(value)


def _stacked(arrays: Sequence[Any] | Iterable[Any], what: str) -> Array:
    arrays = list(arrays)
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        shown = " and ".join(map(str, sorted(shapes)[:2]))
        raise ValueError(
            f"the {what} have different shapes, such as {shown}: make them alike first"
        )
    return np.stack(arrays) if arrays else np.empty(0)
