"""Targets of a user's table: what kind of task they make, and their numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_app.core.errors import require
from fl_app.tasks.table import FEW, as_numbers, codes_of, in_order, names_of, numbers_of


def fit_targets(targets: pd.DataFrame, kind: str, where: str) -> tuple[str, tuple[str, ...]]:
    """The kind of task, and the names of the model's outputs.

    ``"auto"`` takes texts, booleans, and up to `FEW` different whole numbers in one column for
    classes, several columns of 0 and 1 for labels, and all other numbers for regression.

    Args:
        targets: target columns, without missing values.
        kind: ``"auto"`` or one of `fl_app.tasks.schema.KINDS`.
        where: the data, for messages.

    Raises:
        ValueError: the columns do not fit the kind, or there is only one class.
    """
    names = tuple(map(str, targets))
    told = kind != "auto"
    kind = kind if told else _kind_of(targets, where)
    if kind != "classification":
        return kind, names
    require(
        len(names) == 1,
        "task.kind",
        kind,
        f"multi_label or regression with the {len(names)} target columns {', '.join(names)}",
        "an example has one class",
    )
    classes = in_order(names_of(targets.iloc[:, 0]))
    if len(classes) < 2:
        raise ValueError(
            f"{where}: column {names[0]!r} has only the class {classes[0]!r}: there would be "
            "nothing to tell apart; give data of two classes or more, or the schema of data that "
            "have them (task.schema)"
        )
    if not told and len(classes) > max(FEW, len(targets) / 2):
        raise ValueError(
            f"{where}: column {names[0]!r} has {len(classes)} different values in {len(targets)} "
            f"rows, such as {classes[0]!r}, which can hardly be classes: correct it, or say so "
            "with task.kind=classification"
        )
    return kind, classes


def encode_targets(
    targets: pd.DataFrame, kind: str, outputs: Sequence[str], where: str
) -> NDArray[Any]:
    """Targets as a model's objective takes them.

    Args:
        targets: target columns, without missing values.
        kind: one of `fl_app.tasks.schema.KINDS`.
        outputs: names of the model's outputs.
        where: the data, for messages.

    Returns:
        Classes, int64 of shape ``(n,)``, or numbers, float32 of shape ``(n, k)``.

    Raises:
        ValueError: naming the first row whose target has no output or is none.
    """
    wanted = 1 if kind == "classification" else len(outputs)
    if targets.shape[1] != wanted:
        raise ValueError(
            f"{where} has {targets.shape[1]} columns of targets, and the model predicts {wanted}: "
            "give the columns of the schema (task.schema)"
        )
    if kind == "classification":
        return codes_of(targets.iloc[:, 0], outputs, where)
    numbers = pd.concat([numbers_of(targets[name], where) for name in targets], axis=1)
    wrong = ~numbers.isin([0, 1])
    if kind == "multi_label" and wrong.any(axis=None):
        name = numbers.columns[wrong.any()][0]
        row = wrong[name].idxmax()
        raise ValueError(
            f"{where}: column {name!r} is {numbers[name][row]:g} in row {row + 1}, and must be 0 "
            "or 1 with task.kind=multi_label"
        )
    encoded: NDArray[np.float32] = numbers.to_numpy(np.float32)
    return encoded


def _kind_of(targets: pd.DataFrame, where: str) -> str:
    if targets.shape[1] > 1:
        found = pd.concat([numbers_of(targets[name], where) for name in targets], axis=1)
        return "multi_label" if found.isin([0, 1]).all(axis=None) else "regression"
    values = targets.iloc[:, 0]
    flags = values.astype(str).str.lower().isin(["true", "false"])
    if flags.all() or as_numbers(values).notna().mean() < 0.5:
        return "classification"
    numbers = numbers_of(values, f"{where}, with task.kind=auto")
    few = numbers.nunique() <= FEW and bool((numbers % 1 == 0).all())
    return "classification" if few else "regression"
