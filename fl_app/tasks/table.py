"""Tables of pandas as inputs and targets of a model.

The encoding is a schema that a person can read and a node can load. A fitted object of scikit-learn
could only be unpickled. The results equal those of scikit-learn's `SimpleImputer`, `StandardScaler`
and `OneHotEncoder`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd

from fl_app.core.errors import require
from fl_app.core.layout import names_of
from fl_app.core.types import Array, Flags, Indices
from fl_app.tasks.encoding import CODE, Column, Schema

MAX_CATEGORIES = 1000  # of one column: each becomes an input of the model
FEW = 20  # up to so many distinct values always count as categories or classes
SHOWN = 10  # names in a message
FAR, NARROW = 5.0, 0.01  # deviations of a column that suggest other units [A]
OUTLYING = 30.0  # deviations of a value that may be a code for a missing one [A]
FLAGS = {"true": 1, "false": 0}


def completed(
    table: pd.DataFrame, inputs: Sequence[str], others: Sequence[str], rule: str | None, where: str
) -> tuple[pd.DataFrame, list[str]]:
    """The rows of a table that lack no value, or only values that can be filled.

    Args:
        table: a row for each example.
        inputs: names of the columns that can be filled.
        others: names of the target and owner columns, which cannot be filled.
        rule: one of `fl_app.tasks.encoding.MISSING`; None = refuse, and name the keys that help.
        where: the table, for messages.

    Returns:
        The rows, and sentences on what was left out or filled.

    Raises:
        ValueError: a value is missing, or no row is left.
    """
    gaps = table[[*inputs, *others] if rule != "median" else [*others]].isna()
    notes = []
    if rule == "drop":
        lacking = gaps.any(axis=1)
        table = table[~lacking]
        if lacking.any():
            notes.append(f"{where}: task.missing=drop leaves out {lacking.sum()} rows")
    elif gaps.any(axis=None):
        name = gaps.columns[gaps.any()][0]
        more = f", =median or task.ignore={listed(name)}" if name in inputs else ""
        keys = f"; or, without a schema, say task.missing=drop{more}"
        raise ValueError(
            f"{where}: column {name!r} has no value (an empty cell, NA, NaN or NULL) in "
            f"row {gaps[name].idxmax() + 1}, the first of {gaps[name].sum()}: fill them in, or "
            f"remove these rows{keys if rule != 'refuse' else ''}"
        )
    if len(table) == 0:
        what = " without a gap: nothing would be left of it" if len(gaps) else ": there are no data"
        raise ValueError(f"{where} has no rows{what}")
    left = table[[*inputs]].isna()
    if filled := int(left.sum(axis=None)):
        names = ", ".join(left.columns[left.any()])
        notes.append(
            f"{where}: task.missing=median fills {filled} of {left.size} values, of {names}"
        )
    return table, notes


def listed(name: object) -> str:
    """A list of one name, as an override has it."""
    return f"[{name}]" if re.fullmatch(r"[\w.-]+", str(name)) else f"['{name}']"


def refuse_commas(table: pd.DataFrame, targets: Sequence[str], where: str) -> None:
    """Refuse columns of numbers with a comma, of decimals or thousands, which are read as texts.

    Half of the values suffice: the others may be words for a missing one.

    Raises:
        ValueError: there is one; the message names the first and how to correct the file.
    """
    for name, values in table.select_dtypes(exclude="number").items():
        texts = values.dropna().astype(str).str.strip()
        numbers = texts.str.fullmatch(r"[-+]?(\d+(,\d+|(,\d{3})+)?|\d+(\.\d{3})+,\d+)")
        commas = texts[numbers & texts.str.contains(",", regex=False)]
        if len(commas) and numbers.mean() >= 0.5:
            names = f", or take texts for names (task.categories={listed(name)})"
            raise ValueError(
                f"{where}: column {name!r} has {commas.iloc[0]!r}, whose comma makes it a text: "
                "write numbers as 1.5 and 1200 (pandas.read_csv has decimal=',' and "
                f"thousands=','){'' if name in targets else names}"
            )


def doubts(part: Any, schema: Schema) -> list[str]:
    """Notes on likely mistakes in a table: an identifier or a code as a number, a unit, a spelling.

    Args:
        part: a `fl_app.tasks.own_data.Part`; inputs that are an array give no notes.
        schema: of the data.
    """
    table, notes = part.inputs if isinstance(part.inputs, pd.DataFrame) else pd.DataFrame(), []
    numeric = {column.name for column in schema.columns if column.categories is None}
    for name, values in table.drop(columns=[*part.categories], errors="ignore").items():
        texts = values.dropna().astype(str)
        out = f"task.ignore={listed(name)} leaves it out"
        if str(name) in numeric:
            numbers = as_numbers(values).dropna()
            if (codes := texts[texts.str.fullmatch(CODE)]).size:
                nominal = f"task.categories={listed(name)} takes its values for names, {out}"
                notes.append(f"{name} has {codes.iloc[0]!r} and is taken for a number: {nominal}")
                continue
            for end in (numbers.min(), numbers.max()):
                others = numbers[numbers != end]
                number = len(numbers) - len(others)
                if number > 1 and (others - end).abs().min() > np.ptp(others) > 0:
                    empty = "far from the others: if it stands for no value, leave the cells empty"
                    notes.append(f"{name} is {end:g} in {number} rows, {empty}")
        if pd.api.types.is_integer_dtype(values) and values.is_unique and len(values) > FEW:
            notes.append(
                f"no two rows have the same whole number in {name}, as in an identity: {out}"
            )
        elif texts.nunique() > FEW and not pd.api.types.is_numeric_dtype(values):
            starts = texts.str.match(r"\s*[-+]?\d").mean()  # as dates, and numbers with a unit, do
            if starts > 0.5 or len(texts) < 5 * texts.nunique():  # or as identities
                example = f"{texts.nunique()} texts such as {texts.iloc[0]!r}, each an input"
                notes.append(f"{name} has {example}: make numbers or fewer texts of them; {out}")
        elif texts.nunique() == 1:
            notes.append(
                f"{name} is {texts.iloc[0]} in every row: a device where it differs would spoil "
                f"the model; {out}"
            )
    for name, values in table.join(part.targets).items():
        is_number = as_numbers(present := values.dropna()).notna()
        if name not in part.categories and 0.1 < (share := is_number.mean()) < 1:
            word = present[~is_number].mode()[0]
            empty = f"if {word!r} is no value, leave the cell empty"
            notes.append(f"{name} is taken for texts, of which {share:.0%} are numbers: {empty}")
    groups = {f"values of {each.name}": each.categories or () for each in schema.columns}
    groups["classes"] = schema.outputs if schema.kind == "classification" else ()
    groups["owners"] = () if part.owners is None else in_order(texts_of(part.owners))
    for group, names in groups.items():
        times = Counter(map(_plain, names))
        if same := [name for name in names if times[_plain(name)] > 1]:
            notes.append(f"{group} differ only in case, accents or zeros: {names_of(same, SHOWN)}")
    return [f"{part.where}: {each}" for each in notes]


def unusual(schema: Schema, inputs: Array, targets: Array) -> list[str]:
    """Notes on columns of numbers that differ strongly from the data of the schema.

    Args:
        schema: of the data.
        inputs: encoded by it, shape ``(n, width)``.
        targets: encoded by it, shape ``(n,)`` or ``(n, k)``.
    """
    places = np.cumsum([0, *(column.width for column in schema.columns)])[:-1]
    columns = [*zip(schema.columns, inputs.T[places].astype(float), strict=True)]
    predicted = map(Column, schema.outputs, schema.target_mean, schema.target_deviation)
    pairs = zip(predicted, targets.T.astype(float), strict=False)  # none, of classes
    columns += [(column, (own - column.mean) / column.deviation) for column, own in pairs]
    notes = []
    for column, values in columns if len(inputs) else ():  # in deviations from the schema's mean
        if column.categories is not None:
            continue
        step = 2e-7 * (abs(column.mean) + column.deviation)  # float32 has no finer resolution
        ends = column.mean + column.deviation * np.array([values.min(), values.max()])
        low, high = step * np.rint(ends / step) + 0.0  # turns -0 into 0
        span = f"{column.name}: {low:.4g} to {high:.4g} here"
        # A constant that the schema has, too, is 0, with a deviation of 1.
        varies = column.deviation != 1.0 or not np.allclose(values, 0.0)
        if column.fill is not None and np.allclose((low, high), float(column.fill), atol=step):
            notes.append(f"{span}, which is what the schema takes for missing values")
        elif (
            abs(values.mean()) > FAR
            or np.abs(values).max() > OUTLYING
            or (values.std() < NARROW and (np.ptp(values) or (varies and len(values) > FEW)))
        ):
            usual = f"{column.mean:.4g} with the deviation {column.deviation:.4g}"
            notes.append(f"{span}, and {usual} in the schema")
    return notes


def overview(schema: Schema, count: int, owners: "pd.Series | None", where: str) -> str:
    """A line on a user's data: number of examples, inputs, outputs and owners."""
    what = "classes" if schema.kind == "classification" else "numbers to predict:"
    shape = "x".join(map(str, schema.input_shape))
    line = f"{where}: {count} examples, {shape} inputs, {what} {names_of(schema.outputs, SHOWN)}"
    if owners is not None:
        known = in_order(texts_of(owners))
        line += f"; owners ({len(known)}), in the order of the clients: {names_of(known, SHOWN)}"
    return line


# -- values ----------------------------------------------------------------------------------------


def texts_of(values: pd.Series) -> pd.Series:
    """Values as names: texts without spaces around them, whole numbers without a point."""
    if pd.api.types.is_float_dtype(values) and (values % 1 == 0).all():
        values = values.astype(np.int64)
    return values.astype(str).str.strip()


def _plain(name: str) -> str | Decimal:
    """A key that is equal for names that differ only in their spelling."""
    is_number = name.removeprefix("-").replace(".", "", 1).isdecimal()
    return Decimal(name) if is_number else normalize("NFC", name).casefold()


def in_order(names: pd.Series) -> tuple[str, ...]:
    """The distinct names, in numeric order if all are numbers, else in alphabetical order."""
    distinct = pd.Series(sorted(names.unique()))
    numbers = pd.to_numeric(distinct, errors="coerce")
    order = distinct.index if numbers.isna().any() else numbers.argsort(kind="stable")
    return tuple(distinct[order])


def codes_of(values: pd.Series, known: Sequence[str], where: str) -> Indices:
    """Indices of the values' names in `known`, shape ``(n,)``.

    Raises:
        ValueError: a name is not in `known`; the message names its first row.
    """
    names = texts_of(values)
    codes = pd.Index(known).get_indexer(names)
    if len(wrong := names[codes < 0]):
        name = wrong.iloc[0]
        remedy = "remove the row, or train with a schema of data that have all (task.schema)"
        if same := [each for each in known if _plain(each) == _plain(name)]:
            zeros = "; pandas.read_csv keeps its zeros with dtype=str" * name.isdecimal()
            remedy = f"write {same[0]!r}{zeros}"
        raise ValueError(
            f"{where}: column {values.name!r} has {name!r} in row {wrong.index[0] + 1}, which "
            f"is none of {names_of(known, SHOWN)}: {remedy}"
        )
    return np.asarray(codes, np.int64)


def as_numbers(values: pd.Series) -> pd.Series:
    """Values as numbers, true and false as 1 and 0; NaN where one is missing or a text."""
    if not pd.api.types.is_numeric_dtype(values):
        values = values.map(lambda value: FLAGS.get(str(value).lower(), value))
    return pd.to_numeric(values, errors="coerce").astype(np.float64)


def numbers_of(values: pd.Series, where: str, otherwise: str = "") -> pd.Series:
    """Values as numbers, true and false as 1 and 0; NaN where one is missing.

    Args:
        values: a column.
        where: the table, for messages.
        otherwise: a further remedy, at the end of the message.

    Raises:
        ValueError: a value is a text or infinite; the message names its first row.
    """
    numbers = as_numbers(values)
    wrong = values.notna() & ~np.isfinite(numbers)
    if wrong.any():
        raise ValueError(
            f"{where}: column {values.name!r} needs finite numbers and has "
            f"{str(values[wrong.idxmax()])!r} in row {wrong.idxmax() + 1}: correct it, or leave "
            f"the row out{otherwise}"
        )
    return numbers


def in_float32(values: Array, name: str) -> Array:
    """Numbers in float32, as a model takes them.

    Args:
        values: finite, n >= 1 rows.
        name: for messages.

    Raises:
        ValueError: one is too large, or so far from 0 that float32 loses the differences.
    """
    low, high = values.min(0).astype(float), values.max(0).astype(float)
    size, span = np.maximum(-low, high), high - low
    doubtful = (span > 1e-10 * size) & (span < 1e-5 * size)  # less is rounding
    for place in np.argwhere(doubtful | (size > np.finfo(np.float32).max)):
        part = values[:, *place].astype(float)
        with np.errstate(all="ignore"):
            ratio = part.astype(np.float32).std(dtype=float) / part.std()
        if not abs(ratio - 1) < 0.01:
            axes = f"[:, {', '.join(map(str, place))}]" if place.size else ""
            raise ValueError(
                f"{name}{axes} has numbers from {part.min():.12g} to {part.max():.12g}, too large "
                "for float32 to tell them apart: subtract the mean, and divide by the deviation"
            )
    return values.astype(np.float32, copy=False)


# -- inputs ----------------------------------------------------------------------------------------


def fit_column(values: pd.Series, train: Flags, nominal: bool, where: str, *, fill: bool) -> Column:
    """The encoding of a column, with `fill` also the value that replaces missing ones.

    Mean and deviation of numbers come from the training rows, as do medians and the most frequent
    categories. Categories come from all rows, because a category that occurs only in the test set
    could not be encoded otherwise.

    Args:
        values: of all rows.
        train: which rows are for training, shape ``(n,)``.
        nominal: whether numbers stand for categories.
        where: the table, for messages.
        fill: whether missing values are filled.

    Raises:
        ValueError: the column has too many different texts, a wrong number, or no value.
    """
    name, key = str(values.name), listed(values.name)
    if values[train].isna().all():
        raise ValueError(
            f"{where}: column {name!r} has no value in any training row: task.ignore={key}"
        )
    present = values.dropna()
    # A text among numbers is more often a mistake than a category.
    if not nominal and as_numbers(present).notna().mean() >= 0.5:
        otherwise = f", or take the values as names (task.categories={key})"
        numbers = numbers_of(values, where, otherwise)[train]
        median = float(numbers.median()) if fill else None
        numbers = numbers if median is None else numbers.fillna(median)
        deviation = float(numbers.std(ddof=0)) if np.ptp(numbers) else 1.0  # else it divides by 0
        return Column(name, float(numbers.mean()), deviation, fill=median)
    names = texts_of(present)
    known = in_order(names)
    limit = MAX_CATEGORIES if nominal else min(MAX_CATEGORIES, max(FEW, len(names) // 2))
    if len(known) > limit:
        raise ValueError(
            f"{where}: column {name!r} has {len(known)} different texts in {len(names)} rows, such "
            f"as {known[0]!r}, above the bound of {limit}: each would be an input of the model; "
            f"take them as names with task.categories={key} (at most {MAX_CATEGORIES}), or leave "
            f"the column out with task.ignore={key}; sentences need Task.from_arrays, as tokens, "
            "which are integers"
        )
    own = names[train[values.notna()]]
    return Column(name, categories=known, fill=str(own.mode()[0]) if fill else None)


def encode_columns(table: pd.DataFrame, columns: Sequence[Column], where: str) -> Array:
    """Inputs of the model: standardised numbers, and a 0 or 1 for each category.

    Args:
        table: has these columns, n rows.
        columns: how to encode them.
        where: the table, for messages.

    Returns:
        Shape ``(n, width)``.

    Raises:
        ValueError: a value cannot be encoded; the message names its first row.
    """
    parts = []
    for column in columns:
        values = table[column.name]
        if column.categories is None:
            numbers = numbers_of(values, where)
            numbers = numbers if column.fill is None else numbers.fillna(column.fill)
            parts.append(((numbers - column.mean) / column.deviation).to_numpy()[:, None])
        else:
            names = texts_of(values.dropna()).reindex(values.index, fill_value=column.fill)
            parts.append(np.eye(column.width)[codes_of(names, column.categories, where)])
    return np.concatenate(parts, 1).astype(np.float32)


# -- targets ---------------------------------------------------------------------------------------


def fit_targets(targets: pd.DataFrame, kind: str, where: str) -> tuple[str, tuple[str, ...]]:
    """The kind of task, and the names of the model's outputs.

    With ``"auto"``, texts, booleans, and up to `FEW` different whole numbers in one column are
    classes. All other numbers are for regression.

    Args:
        targets: target columns, without missing values.
        kind: ``"auto"`` or one of `fl_app.tasks.encoding.KINDS`.
        where: the data, for messages.

    Raises:
        ValueError: the columns do not fit the kind, or there is only one class.
    """
    names = tuple(map(str, targets))
    explicit = kind != "auto"
    kind = kind if explicit else _kind_of(targets, where)
    if kind != "classification":
        return kind, names
    bound = f"regression with the {len(names)} target columns {', '.join(names)}"
    require(len(names) == 1, "task.kind", kind, bound, "an example has one class")
    classes = in_order(texts_of(targets.iloc[:, 0]))
    if len(classes) < 2:
        raise ValueError(
            f"{where}: column {names[0]!r} has only the class {classes[0]!r}: there would be "
            "nothing to tell apart; give data of two classes or more, or a schema (task.schema)"
        )
    if not explicit and len(classes) > max(FEW, len(targets) / 2):
        raise ValueError(
            f"{where}: column {names[0]!r} has {len(classes)} different values in {len(targets)} "
            f"rows, such as {classes[0]!r}, which can hardly be classes: correct it, or say so "
            "with task.kind=classification"
        )
    return kind, classes


def _kind_of(targets: pd.DataFrame, where: str) -> str:
    if targets.shape[1] > 1:
        return "regression"
    values = targets.iloc[:, 0]
    flags = values.astype(str).str.lower().isin(FLAGS)
    if flags.all() or as_numbers(values).notna().mean() < 0.5:
        return "classification"
    numbers = numbers_of(values, where, ", or take all as classes (task.kind=classification)")
    few = numbers.nunique() <= FEW and bool((numbers % 1 == 0).all())
    return "classification" if few else "regression"


def encode_targets(targets: pd.DataFrame, kind: str, outputs: Sequence[str], where: str) -> Array:
    """Targets in the form that an objective takes.

    Args:
        targets: target columns, without missing values.
        kind: one of `fl_app.tasks.encoding.KINDS`.
        outputs: names of the model's outputs.
        where: the data, for messages.

    Returns:
        Classes, int64 of shape ``(n,)``, or numbers, float32 of shape ``(n, k)``.

    Raises:
        ValueError: a target has no output or is no number; the message names its first row. Or
            float32 cannot hold the numbers of a column, which the message names.
    """
    wanted = 1 if kind == "classification" else len(outputs)
    if targets.shape[1] != wanted:
        raise ValueError(
            f"{where} has {targets.shape[1]} columns of targets, and the model predicts {wanted}"
        )
    if kind == "classification":
        return codes_of(targets.iloc[:, 0], outputs, where)
    numbers = {name: numbers_of(targets[name], where).to_numpy() for name in targets}
    parts = [in_float32(each, f"{where}: column {name!r}") for name, each in numbers.items()]
    return np.stack(parts, axis=1)
