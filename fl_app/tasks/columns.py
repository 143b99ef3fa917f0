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
    missing: str = "refuse",
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
        missing: one of `fl_app.tasks.schema.MISSING`, unless there is a schema.
        test: the test table, and what messages call it.
        schema: states the encoding; None = it is fitted on the training rows.

    Raises:
        ValueError: a column is missing or cannot be encoded, a value is missing, or there are too
            few rows.
    """
    inputs, targets = roles.resolve([str(name) for name in table.columns], schema, where)
    missing = missing if schema is None else schema.missing
    others = [*targets, *(name for name in (roles.client, roles.partition_by) if name)]
    table, where, left_out = _completed(table, inputs, others, missing, where)
    if len(table) == 0:
        raise ValueError(f"{where} has no rows: there is nothing to learn from")
    values = {name: table[name].to_numpy() for name in targets}
    if schema is None:
        kind, outputs = fit_targets(values, kind, where)
    else:
        kind, outputs = schema.kind, schema.outputs
    encoded = encode_targets(values, kind, outputs, where)
    owners = ids(table[roles.client].to_numpy()) if roles.client else None
    column = table[roles.partition_by].to_numpy() if roles.partition_by else None
    groups = encoded if owners is None and kind == "classification" else owners
    tested = choose_test(len(table), 0 if test else test_share, groups, where)
    if schema is None:
        fill = missing == "median"
        columns = _fit(table, ~tested, inputs, roles.categories, where, fill=fill)
        width = sum(column.width for column in columns)
        units = target_moments(kind, encoded[~tested])
        schema = Schema(kind, (width,), outputs, targets, columns, **units, missing=missing)
    examples = _encode(table, schema.columns, where)
    held = (examples[tested], encoded[tested]) if tested.any() else None
    if test is not None:
        held, more = _encode_test(*test, roles, schema)
        left_out += more
    arrays = pack(
        schema,
        (examples[~tested], encoded[~tested]),
        held,
        None if owners is None else owners[~tested],
        None if column is None else column[~tested],
    )
    return arrays | ({"left_out": np.array([left_out])} if left_out else {})


def _encode_test(
    table: pd.DataFrame, where: str, roles: Roles, schema: Schema
) -> tuple[tuple[NDArray[Any], NDArray[Any]], int]:
    own = Roles(roles.target)  # nobody owns a row of the test set
    inputs, targets = own.resolve([str(name) for name in table.columns], schema, where)
    table, where, left_out = _completed(table, inputs, targets, schema.missing, where)
    if len(table) == 0:
        raise ValueError(f"{where} has no rows: nothing could be tested")
    values = {name: table[name].to_numpy() for name in targets}
    examples = _encode(table, schema.columns, where)
    return (examples, encode_targets(values, schema.kind, schema.outputs, where)), left_out


def _completed(
    table: pd.DataFrame, inputs: Sequence[str], others: Sequence[str], missing: str, where: str
) -> tuple[pd.DataFrame, str, int]:
    """A table in which only values are missing that can be filled, its name, and rows left out.

    Args:
        table: a row per example.
        inputs: names of the columns that can be filled.
        others: those of the columns that cannot: targets and owners.
        missing: one of `fl_app.tasks.schema.MISSING`.
        where: the table, for messages.

    Raises:
        ValueError: a value is missing, or a number is infinite.
    """
    left_out = 0
    if missing == "drop":
        whole = table[[*inputs, *others]].notna().all(axis=1)
        left_out = int((~whole).sum())
        table = table[whole]
        where += f" without the {left_out} rows that lack a value" if left_out else ""
    require_complete(table, inputs, where, gaps=missing == "median")
    require_complete(table, others, where)
    return table, where, left_out


def require_complete(
    table: pd.DataFrame, names: Sequence[str], where: str, *, gaps: bool = False
) -> None:
    """Refuse infinite numbers, and missing values unless there may be `gaps`.

    Raises:
        ValueError: naming column and first row.
    """
    for name in names:
        column = table[name]
        missing = np.zeros(len(column), bool) if gaps else column.isna().to_numpy()
        if column.dtype.kind == "f":
            missing = missing | np.isinf(column.to_numpy())
        if missing.any():
            row = int(np.flatnonzero(missing)[0])
            infinite = not pd.isna(column.iloc[row])
            what = "an infinite number" if infinite else "no value (an empty cell, NA or NaN)"
            raise ValueError(
                f"{where}: column {name!r} has {what} in row {row + 1} and {int(missing.sum())} "
                "rows in all: fill them in (in a table task.missing=median does it), remove these "
                f"rows (task.missing=drop), or leave the column out with task.ignore=[{name}]"
            )


def _fit(
    table: pd.DataFrame,
    train: NDArray[np.bool_],
    names: Sequence[str],
    categories: Collection[str],
    where: str,
    *,
    fill: bool,
) -> tuple[Column, ...]:
    """How to encode columns, and with `fill` what missing values count as.

    Mean and deviation of numbers are those of the training rows, as are medians and commonest
    categories. Categories are those of all rows: else a category could not be encoded that only a
    row of the test set has.
    """
    columns = []
    for name in names:
        column, known = table[name], name in categories
        if column[train].isna().all():
            raise ValueError(
                f"{where}: column {name!r} has no value in any training row, from which a missing "
                f"one could be filled: leave the column out with task.ignore=[{name}]"
            )
        values = column.dropna().infer_objects().to_numpy()  # true and false beside gaps
        # A text among numbers is a mistake more often than a name.
        if not known and (values.dtype.kind in "biuf" or numeric_share(values) >= 0.5):
            numbers = _numbers(name, column, where)[train]
            median = float(np.nanmedian(numbers)) if fill else None
            if median is not None:
                numbers = np.where(np.isnan(numbers), median, numbers)
            deviation = float(numbers.std()) if np.ptp(numbers) else 1.0  # else it divides by 0
            columns.append(Column(name, float(numbers.mean()), deviation, fill=median))
        else:
            texts = column[train].dropna().map(name_of)
            commonest = str(texts.mode()[0]) if fill else None
            found = _categories(name, values, where, known)
            columns.append(Column(name, categories=found, fill=commonest))
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
        values = table[column.name]
        if column.categories is not None:
            values = values.where(values.notna(), column.fill)
            parts.append(_one_hot(column.name, values.to_numpy(), column.categories, where))
        else:
            numbers = _numbers(column.name, values, where)
            if column.fill is not None:
                numbers = np.where(np.isnan(numbers), column.fill, numbers)
            parts.append(((numbers - column.mean) / column.deviation).astype(np.float32)[:, None])
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


def _numbers(name: str, column: pd.Series, where: str) -> NDArray[np.float64]:
    """Numbers, of which some may be written as texts; NaN where one is missing."""
    values = (
        column.to_numpy(object, na_value=np.nan) if column.dtype == object else column.to_numpy()
    )
    wrong = (row for row in range(len(values)) if numeric_share(values[row : row + 1]) < 1)
    plain = column.dropna().infer_objects().dtype.kind in "biuf"
    row = None if plain else next(wrong, None)
    if row is None:
        numbers: NDArray[np.float64] = values.astype(np.float64)
        return numbers
    raise ValueError(
        f"{where}: column {name!r} needs numbers and has the text {str(values[row])!r} in row "
        f"{row + 1}: correct it, take the values as names with task.categories=[{name}], or leave "
        f"the column out with task.ignore=[{name}]"
    )
