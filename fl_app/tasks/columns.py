"""A table's columns as inputs and targets of a model.

It loads pandas. Tasks import it when they read a table that the cache does not have.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_app.tasks.cache import Arrays
from fl_app.tasks.own_data import choose_test, pack, target_moments
from fl_app.tasks.roles import Roles
from fl_app.tasks.schema import Column, Schema
from fl_app.tasks.targets import (
    MOST_CODES,
    encode_targets,
    fit_targets,
    ids,
    name_of,
    names_in_order,
    numeric_share,
)

MOST_CATEGORIES = 1000  # of one column: each becomes an input of the model
SHOWN = 10  # names in a message
LIKE_NUMBER = re.compile(r"[-+$€£]?\s*\d[\d.,' ]*\s*[%€]?")  # 1,5 or 12 % or 1,234


def encode_table(
    table: pd.DataFrame,
    where: str,
    roles: Roles,
    *,
    kind: str,
    test_share: float,
    test: tuple[pd.DataFrame, str] | None = None,
    schema: Schema | None = None,
) -> Arrays:
    """Arrays of a table, as `fl_app.tasks.own_data.pack` gives them.

    Args:
        table: a row per example.
        where: the table, for messages.
        roles: of its columns.
        kind: as of `fl_app.tasks.targets.fit_targets`.
        test_share: share of the rows for testing, if there is no test table.
        test: the test table, and what messages call it.
        schema: states the encoding; None = it is fitted on the training rows.

    Raises:
        ValueError: a column is missing or cannot be encoded, a value is missing, or there are too
            few rows.
    """
    inputs, targets = roles.resolve([str(name) for name in table.columns], schema, where)
    if len(table) == 0:
        raise ValueError(f"{where} has no rows: there is nothing to learn from")
    client = () if roles.client is None else (roles.client,)
    require_complete(table, (*inputs, *targets, *client), where)
    values = {name: table[name].to_numpy() for name in targets}
    if schema is None:
        kind, outputs = fit_targets(values, kind, where)
    else:
        kind, outputs = schema.kind, schema.outputs
    encoded = encode_targets(values, kind, outputs, where)
    owners = ids(table[roles.client].to_numpy()) if roles.client else None
    groups = encoded if owners is None and kind == "classification" else owners
    tested = choose_test(len(table), 0 if test else test_share, groups, where)
    if schema is None:
        columns = _fit(table, ~tested, inputs, roles.categories, where)
        width = sum(column.width for column in columns)
        units = target_moments(kind, encoded[~tested])
        schema = Schema(kind, (width,), outputs, targets, columns, **units)
    examples = _encode(table, schema.columns, where)
    held = (examples[tested], encoded[tested]) if tested.any() else None
    if test is not None:
        held = _encode_test(*test, roles, schema)
    return pack(
        schema,
        (examples[~tested], encoded[~tested]),
        held,
        None if owners is None else owners[~tested],
    )


def _encode_test(
    table: pd.DataFrame, where: str, roles: Roles, schema: Schema
) -> tuple[NDArray[Any], NDArray[Any]]:
    own = Roles(roles.target)  # nobody owns a row of the test set
    inputs, targets = own.resolve([str(name) for name in table.columns], schema, where)
    if len(table) == 0:
        raise ValueError(f"{where} has no rows: nothing could be tested")
    require_complete(table, (*inputs, *targets), where)
    values = {name: table[name].to_numpy() for name in targets}
    return (
        _encode(table, schema.columns, where),
        encode_targets(values, schema.kind, schema.outputs, where),
    )


def require_complete(table: pd.DataFrame, names: Sequence[str], where: str) -> None:
    """Refuse missing values and infinite numbers.

    Raises:
        ValueError: naming column and first row.
    """
    for name in names:
        column = table[name]
        missing = column.isna().to_numpy()
        if column.dtype.kind == "f":
            missing = ~np.isfinite(column.to_numpy())
        if missing.any():
            row = int(np.flatnonzero(missing)[0])
            infinite = not pd.isna(column.iloc[row])
            what = "an infinite number" if infinite else "no value (an empty cell, NA or NaN)"
            raise ValueError(
                f"{where}: column {name!r} has {what} in row {row + 1} and {int(missing.sum())} "
                "rows in all: fill them in, remove these rows, or leave the column out with "
                f"task.ignore=[{name}]"
            )


def _fit(
    table: pd.DataFrame,
    train: NDArray[np.bool_],
    names: Sequence[str],
    categories: Collection[str],
    where: str,
) -> tuple[Column, ...]:
    """How to encode columns.

    Mean and deviation of numbers are those of the training rows. Categories are those of all rows:
    else a category could not be encoded that only a row of the test set has.
    """
    columns = []
    for name in names:
        values = table[name].to_numpy()
        # A text among numbers is a mistake more often than a name.
        if name not in categories and numeric_share(values) >= 0.5:
            values = _numbers(name, values, where)
        if name in categories or values.dtype.kind not in "biuf":
            known = name in categories
            columns.append(Column(name, categories=_categories(name, values, where, known)))
        else:
            numbers = values[train].astype(np.float64)
            deviation = float(numbers.std()) if np.ptp(numbers) else 1.0  # else it divides by 0
            columns.append(Column(name, float(numbers.mean()), deviation))
    return tuple(columns)


def _categories(name: str, values: NDArray[Any], where: str, told: bool) -> tuple[str, ...]:
    found = names_in_order(values)
    like_numbers = sum(LIKE_NUMBER.fullmatch(text) is not None for text in found)
    if not told and (
        2 * like_numbers >= len(found) or len(found) > max(MOST_CODES, values.size / 2)
    ):
        raise ValueError(
            f"{where}: column {name!r} has {len(found)} different texts in {values.size} rows, "
            f"such as {found[0]!r}, which can hardly be categories: turn them into numbers, take "
            f"them as names with task.categories=[{name}], or leave the column out with "
            f"task.ignore=[{name}]"
        )
    if len(found) > MOST_CATEGORIES:
        raise ValueError(
            f"{where}: column {name!r} has {len(found)} different texts, above the bound of "
            f"{MOST_CATEGORIES}: each would be an input of the model; leave it out with "
            f"task.ignore=[{name}]"
        )
    return found


def _encode(table: pd.DataFrame, columns: Sequence[Column], where: str) -> NDArray[np.float32]:
    """Inputs of the model: standardised numbers, and a 0 or 1 for each category."""
    parts = []
    for column in columns:
        values = table[column.name].to_numpy()
        if column.categories is not None:
            parts.append(_one_hot(column.name, values, column.categories, where))
        else:
            values = _numbers(column.name, values, where)
            standard = (values.astype(np.float64) - column.mean) / column.deviation
            parts.append(standard.astype(np.float32)[:, None])
    return np.concatenate(parts, 1)


def _one_hot(
    name: str, values: NDArray[Any], categories: Sequence[str], where: str
) -> NDArray[np.float32]:
    texts = np.array([name_of(value) for value in values], object)
    unknown = np.flatnonzero(~np.isin(texts, np.array(categories, object)))
    if unknown.size:
        row = unknown[0]
        known = ", ".join(categories[:SHOWN]) + (", ..." if len(categories) > SHOWN else "")
        raise ValueError(
            f"{where}: column {name!r} has {texts[row]!r} in row {row + 1}, which is none of its "
            f"categories {known}: the model has no input for it; remove the row, or write a schema "
            "from data that have every category (task.schema)"
        )
    places = pd.Categorical(texts, categories=list(categories)).codes
    encoded: NDArray[np.float32] = np.eye(len(categories), dtype=np.float32)[places]
    return encoded


def _numbers(name: str, values: NDArray[Any], where: str) -> NDArray[Any]:
    """Numbers, of which some may be written as texts."""
    if values.dtype.kind in "biuf":
        return values
    wrong = (row for row in range(len(values)) if numeric_share(values[row : row + 1]) < 1)
    row = next(wrong, None)
    if row is None:
        return values.astype(np.float64)
    raise ValueError(
        f"{where}: column {name!r} needs numbers and has the text {str(values[row])!r} in row "
        f"{row + 1}: correct it, take the values as names with task.categories=[{name}], or leave "
        f"the column out with task.ignore=[{name}]"
    )
