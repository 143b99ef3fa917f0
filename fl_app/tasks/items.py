"""Arrays from what users have: arrays of any kind, data sets of torch and of Hugging Face."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]


def pair(x: Any, y: Any, x_name: str, y_name: str) -> tuple[Array, Array]:
    """Inputs, which are finite numbers, and targets: arrays with a row for each example.

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
    if hasattr(values, "detach"):  # a tensor of torch, which the keys of tasks do not load
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values  # NumPy has no bfloat16
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


def table_of(targets: Array, name: str) -> "pd.DataFrame":
    """Targets of shape ``(n,)`` or ``(n, k)`` as columns of a table.

    Raises:
        ValueError: they have another shape, or a value is missing.
    """
    import pandas as pd

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

    Classes are given by their names, None where there is none.

    Raises:
        ValueError: there is none of this name, or its values differ in shape.
    """
    if name not in data.column_names:
        raise ValueError(f"there is no column {name!r}: there are {', '.join(data.column_names)}")
    column = data.select_columns([name])
    if type(data.features[name]).__name__ == "Image":
        return _stacked([_array(row[name]) for row in column], f"images of the column {name!r}")
    if classes := class_names(data, name):
        rows = column.with_format(None)[:][name]
        return np.array([*classes, None], object)[[-1 if row is None else row for row in rows]]
    found = column.with_format("numpy")[:][name]
    values = found if isinstance(found, np.ndarray) else np.asarray(found, object)
    if values.dtype == object and values.size and np.ndim(values.flat[0]) > 0:
        values = _stacked([np.asarray(v) for v in values], f"values of the column {name!r}")
    return values


def class_names(data: Any, name: str) -> list[str] | None:
    """Names of the classes of a `datasets.ClassLabel`; None = the column is none."""
    names: list[str] | None = getattr(data.features[name], "names", None)
    return names


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
