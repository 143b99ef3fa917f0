"""Data sets of torch and of Hugging Face as arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def read_pairs(data: Any, name: str) -> tuple[Array, Array]:
    """Inputs and targets of a map-style data set of torch.

    Args:
        data: has ``len()``, and by index pairs of input and target.
        name: for messages.

    Raises:
        ValueError: its items are no pairs, or its inputs differ in shape.
    """
    items = [data[place] for place in range(len(data))]
    for place, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(
                f"{name}[{place}] is a {type(item).__name__} and must be a pair of input and target"
            )
    inputs, targets = ([_array(item[place]) for item in items] for place in (0, 1))
    return _stacked(inputs, f"inputs of {name}"), _stacked(targets, f"targets of {name}")


def splits_of(data: Any) -> tuple[Any, Any | None]:
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
        raise ValueError(f"data has the splits {', '.join(splits) or 'none'} and must have 'train'")
    return splits["train"], splits.get("test")


def dealt(partitioner: Any) -> tuple[Any, NDArray[np.int64]]:
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
        target: column of the targets; classes are given by their names.

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

    Classes are given by their names, None where there is none; lists of classes as 0 or 1 for each.

    Raises:
        ValueError: there is none of this name, or its values differ in shape.
    """
    if name not in data.column_names:
        raise ValueError(f"there is no column {name!r}: there are {', '.join(data.column_names)}")
    column = data.select_columns([name])
    if type(data.features[name]).__name__ == "Image":
        return _stacked([_array(row[name]) for row in column], f"images of the column {name!r}")
    labels, classes = label_names(data, name), class_names(data, name)
    if labels or classes:
        rows = column.with_format(None)[:][name]
        if labels:
            return np.array([[place in row for place in range(len(labels))] for row in rows])
        named = np.array([*(classes or ()), None], object)
        return named[[-1 if row is None else row for row in rows]]
    found = column.with_format("numpy")[:][name]
    values = found if isinstance(found, np.ndarray) else np.asarray(found, object)
    if values.dtype == object and values.size and np.ndim(values.flat[0]) > 0:
        values = _stacked([np.asarray(v) for v in values], f"values of the column {name!r}")
    return values


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
    if hasattr(value, "detach"):  # a tensor of torch, which the keys of tasks do not load
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
