"""Targets of a user's data: what kind of task they make, and their numbers."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require

Values: TypeAlias = NDArray[Any]  # shape (n,): numbers, booleans, or objects that are texts

MOST_CODES = 20  # distinct whole numbers that are taken for classes
SHOWN = 10  # classes in a message


def fit_targets(values: Mapping[str, Values], kind: str, where: str) -> tuple[str, tuple[str, ...]]:
    """The kind of task, and the names of the model's outputs.

    ``"auto"`` takes texts, booleans, and up to `MOST_CODES` different whole numbers in one column
    for classes, several columns of 0 and 1 for labels, and all other numbers for regression.

    Args:
        values: target columns by name, without missing values.
        kind: ``"auto"`` or one of `fl_app.tasks.schema.KINDS`.
        where: the data, for messages.

    Raises:
        ValueError: the columns do not fit the kind, or there is only one class.
    """
    names = tuple(values)
    stated = kind != "auto"
    if not stated:
        kind = _kind_of(values, where)
    if kind == "classification":
        require(
            len(names) == 1,
            "task.kind",
            kind,
            f"multi_label or regression with the {len(names)} target columns {', '.join(names)}",
            "an example has one class",
        )
        (column,) = values.values()
        classes = names_in_order(column)
        if len(classes) < 2:
            raise ValueError(
                f"{where}: {_named(names[0])} has only the class {classes[0]!r}: there would be "
                "nothing to tell apart; give data of two classes or more, or the schema of data "
                "that have them (task.schema)"
            )
        if not stated and len(classes) > max(MOST_CODES, column.size / 2):
            raise ValueError(
                f"{where}: {_named(names[0])} has {len(classes)} different values in {column.size} "
                f"rows, such as {classes[0]!r}, which can hardly be classes: correct it, or say so "
                "with task.kind=classification"
            )
        return kind, classes
    encode_targets(values, kind, names, where)
    return kind, names


def encode_targets(
    values: Mapping[str, Values], kind: str, outputs: Sequence[str], where: str
) -> NDArray[Any]:
    """Targets: int64 of shape ``(n,)`` for classes, else float32 of shape ``(n, K)``.

    Args:
        values: target columns by name, without missing values.
        kind: one of `fl_app.tasks.schema.KINDS`.
        outputs: names of the classes, or of the columns.
        where: the data, for messages.

    Raises:
        ValueError: a class is unknown, a label is neither 0 nor 1, a number is a text, or there are
            more or fewer columns than outputs.
    """
    wanted = 1 if kind == "classification" else len(outputs)
    if len(values) != wanted:
        raise ValueError(
            f"{where} has {len(values)} columns of targets, and the model predicts {wanted}: give "
            "the columns of the schema (task.schema)"
        )
    if kind == "classification":
        ((name, column),) = values.items()
        return _codes(name, column, outputs, where)
    columns = [numbers(name, column, where) for name, column in values.items()]
    if kind == "multi_label":
        for name, column in zip(values, columns, strict=True):
            wrong = np.flatnonzero((column != 0) & (column != 1))
            if wrong.size:
                raise ValueError(
                    f"{where}: label {name!r} is {column[wrong[0]]:g} in row {wrong[0] + 1}, and "
                    "must be 0 or 1 with task.kind=multi_label"
                )
    return np.stack(columns, 1).astype(np.float32)


def numbers(name: str, values: Values, where: str) -> NDArray[np.float64]:
    """A column as numbers, ``true`` and ``false`` as 1 and 0.

    Raises:
        ValueError: naming the first row that has a text.
    """
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    found = [_number(value) for value in values]
    wrong = [row for row, number in enumerate(found) if number is None or not isfinite(number)]
    if wrong:
        row = wrong[0]
        raise ValueError(
            f"{where}: {_named(name)} needs numbers and has the text {str(values[row])!r} in row "
            f"{row + 1}: correct it, or leave the row out"
        )
    return np.array(found, np.float64)


def numeric_share(values: Values) -> float:
    """Share of the values that are numbers or texts of numbers; booleans are none."""
    if values.dtype.kind in "iuf":
        return 1.0
    distinct, counts = np.unique(values, return_counts=True)
    number = [not _is_flag(value) and _number(value) is not None for value in distinct]
    return float(counts[number].sum() / max(values.size, 1))


def names_in_order(values: Values) -> tuple[str, ...]:
    """The distinct values as texts; in the order of numbers if all of them are, else by name."""
    names = sorted({name_of(value) for value in np.unique(values)})
    if all(_number(name) is not None for name in names):
        names.sort(key=lambda name: (_number(name) or 0.0, name))
    return tuple(names)


def ids(values: Values) -> NDArray[np.int64]:
    """Numbers of the distinct values, in their order, shape ``(n,)``."""
    places = {name: place for place, name in enumerate(names_in_order(values))}
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.array([places[name_of(value)] for value in distinct], np.int64)[inverse]


def _kind_of(values: Mapping[str, Values], where: str) -> str:
    columns = list(values.values())
    if len(columns) == 1:
        (name,), (column,) = values, columns
        share = numeric_share(column)
        if share < 0.5:
            return "classification"
        if share < 1:
            numbers(name, column, f"{where}, with task.kind=auto")  # raises
        distinct = np.unique(numbers(name, column, where))
        codes = distinct.size <= MOST_CODES and bool((distinct == np.floor(distinct)).all())
        return "classification" if codes else "regression"
    found = [numbers(name, column, where) for name, column in values.items()]
    flags = all(bool(((column == 0) | (column == 1)).all()) for column in found)
    return "multi_label" if flags else "regression"


def _codes(name: str, values: Values, classes: Sequence[str], where: str) -> NDArray[np.int64]:
    places = {known: place for place, known in enumerate(classes)}
    distinct, inverse = np.unique(values, return_inverse=True)
    codes = np.array([places.get(name_of(value), -1) for value in distinct], np.int64)[inverse]
    unknown = np.flatnonzero(codes < 0)
    if unknown.size:
        row = unknown[0]
        more = ", ..." if len(classes) > SHOWN else ""
        raise ValueError(
            f"{where}: {_named(name)} has the class {name_of(values[row])!r} in row {row + 1}, "
            f"which is none of {', '.join(classes[:SHOWN])}{more}: the model has no output for it; "
            "leave the row out, or write a schema from data that have every class (task.schema)"
        )
    return codes


def _named(name: str) -> str:
    return f"target {name!r}"


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_) or str(value).lower() in ("true", "false")


def _number(value: Any) -> float | None:
    if _is_flag(value):
        return float(str(value).lower() == "true")
    try:
        return float(value)
    except (ValueError, TypeError):
        return None


def name_of(value: Any) -> str:
    """A class's name; whole numbers look alike whatever their type."""
    if isinstance(value, float | np.floating) and value == np.floor(value):
        return str(int(value))
    return str(value).strip()
