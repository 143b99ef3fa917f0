"""A user's arrays as the tensors of a task, checked before anything is trained."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_app.tasks.objective import Classification, Loss, MultiLabel, Objective, Regression
from fl_app.tasks.schema import KINDS

Values: TypeAlias = Any  # what numpy.asarray takes, or a tensor

FEW = 20  # distinct whole numbers that are always taken for classes
SHOWN = 10  # classes in a message
TAKEN = (
    *("version", "t", "loss", "client_updates", "bytes_down", "bytes_up", "orders_wasted"),
    *("seconds_wasted", "participation_gini", "joules"),
)  # names in a run's table that no further metric can have


@dataclass(frozen=True, eq=False)
class Examples:
    """Tensors as `fl_app.tasks.task.Task` has them; those of the test set may be None."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor | None
    test_targets: Tensor | None
    objective: Objective


def examples_of(
    x_train: Values,
    y_train: Values,
    x_test: Values | None,
    y_test: Values | None,
    objective: str | Objective | None,
    loss: Loss | None,
    metrics: Mapping[str, Any] | None,
    *,
    tokens: bool,
) -> Examples:
    """Inputs and targets as tensors, and the objective that is given or follows from the targets.

    The other arguments are those of `fl_app.tasks.task.Task.from_arrays`; `tokens` says whether the
    model takes integers for tokens.

    Raises:
        ValueError: lengths or shapes differ, a value is missing, infinite or a text where numbers
            are needed, there is only one class, or the targets do not fit the objective.
    """
    if (x_test is None) != (y_test is None):
        absent, given = ("x_test", "y_test") if x_test is None else ("y_test", "x_test")
        raise ValueError(f"{absent} is missing: give it with {given}, or neither of them")
    inputs, y = _pair(x_train, y_train, "train", tokens)
    test_inputs, test_y = None, None
    if x_test is not None:
        test_inputs, test_y = _pair(x_test, y_test, "test", tokens)
        if inputs.dtype == torch.float32 and test_inputs.dtype == torch.int64:
            test_inputs = test_inputs.float()
        for what, name, own, others in (
            ("examples", "x", tuple(test_inputs.shape[1:]), tuple(inputs.shape[1:])),
            ("targets", "y", test_y.shape[1:], y.shape[1:]),
            ("examples", "x", test_inputs.dtype, inputs.dtype),  # bytes are pixels
        ):
            if own != others:
                raise ValueError(
                    f"{name}_test has {what} of {own}, and must have those of {name}_train, "
                    f"{others}: one model takes both"
                )
    kind = objective or _kind_of(y)
    made = _objective(kind, y, test_y, standardise=loss is None) if isinstance(kind, str) else kind
    targets = _targets(y, "y_train", made)
    if isinstance(made, Classification) and bool((targets == targets.flatten()[0]).all()):
        raise ValueError("y_train has only one class: there would be nothing to tell apart")
    test_targets = None if test_y is None else _targets(test_y, "y_test", made)
    if loss is not None:
        made = replace(made, criterion=loss)
    if metrics is not None:
        taken = [name for name in metrics if name in TAKEN]
        if taken:
            raise ValueError(f"metrics has the name {taken[0]!r}, which a run's table has already")
        made = replace(made, metrics=dict(metrics))
    return Examples(inputs, targets, test_inputs, test_targets, made)


def _pair(x: Values, y: Values, part: str, tokens: bool) -> tuple[Tensor, NDArray[Any]]:
    """Inputs and targets of the training or test set, of the same number of examples."""
    inputs, targets = _inputs(x, f"x_{part}", tokens), _raw(y, f"y_{part}")
    if len(inputs) != len(targets):
        raise ValueError(
            f"y_{part} has {len(targets)} targets and x_{part} {len(inputs)} examples: each "
            "example needs one"
        )
    if inputs.numel() == 0:
        raise ValueError(
            f"x_{part} has the shape {tuple(inputs.shape)}: its examples hold nothing; leave out "
            "x_test and y_test to run without a test set"
        )
    return inputs, targets


# -- inputs ----------------------------------------------------------------------------------------


def _inputs(values: Values, name: str, tokens: bool) -> Tensor:
    """Numbers as float32, pixels (bytes in images) as they are, tokens as int64."""
    array = _numbers(_raw(values, name), name)
    pixels = array.dtype == np.uint8 and array.ndim > 2
    if array.dtype.kind == "f":
        array = _finite(array, name)
    elif not pixels:
        is_number = array.dtype in (np.bool_, np.uint8) or not tokens
        array = array.astype(np.float32 if is_number else np.int64, copy=False)
    return _tensor(array[:, None] if array.ndim == 1 else array)  # one number for each example


def _tensor(array: NDArray[Any]) -> Tensor:
    """A tensor on the same memory; a copy where torch cannot share it."""
    if any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files mapped read-only: nobody writes to the tensor
        return torch.from_numpy(array)


# -- targets ---------------------------------------------------------------------------------------


def _kind_of(y: NDArray[Any]) -> str:
    """Kind of targets by their type: floating point is numbers, anything else is classes."""
    several = y.ndim == 2 and y.shape[1] > 1
    if several and y.dtype.kind in "biuf" and bool(((y == 0) | (y == 1)).all()):
        return "multi_label"
    if several or y.dtype.kind == "f":
        return "regression"
    num_distinct = len(np.unique(_classes(y, "y_train")))
    if y.dtype.kind in "iu" and num_distinct > max(FEW, len(y) // 2):
        raise ValueError(
            f"y_train has {num_distinct} different integers in {len(y)} examples: say "
            "objective='regression' if they are numbers, objective='classification' if each is a "
            "class"
        )
    return "classification"


def _objective(
    kind: str, y: NDArray[Any], test_y: NDArray[Any] | None, *, standardise: bool
) -> Objective:
    """The objective of a kind, as large as the targets need it."""
    if kind not in KINDS:
        raise ValueError(f"objective={kind} must be one of {', '.join(KINDS)}, or an Objective")
    if kind == "classification":
        classes = _classes(y, "y_train")
        if test_y is not None:
            classes = np.concatenate([classes, _classes(test_y, "y_test")])
        names = tuple(np.unique(classes).tolist())
        return Classification(len(names), classes=names)
    columns = _columns(y, "y_train")
    if kind == "multi_label":
        return MultiLabel(columns.shape[1])
    if not standardise:
        return Regression(columns.shape[1])
    mean, deviation = columns.mean(0, np.float64), columns.std(0, dtype=np.float64)
    deviation = np.where(deviation > 1e-7 * np.abs(mean), deviation, 1.0)  # else it is rounding
    return Regression(len(mean), mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()))


def _targets(y: NDArray[Any], name: str, objective: Objective) -> Tensor:
    """Targets as the objective needs them."""
    if isinstance(objective, Classification):
        return torch.from_numpy(_codes(y, name, objective))
    columns = _columns(y, name)
    if columns.shape[1] != objective.num_outputs:
        raise ValueError(
            f"{name} has {columns.shape[1]} columns, and the objective {objective.num_outputs} "
            "outputs: each output needs one"
        )
    if isinstance(objective, MultiLabel):
        wrong = columns[(columns != 0) & (columns != 1)]
        if wrong.size:
            raise ValueError(f"{name} has {wrong[0]:g} and must have 0 or 1 for each label")
    return _tensor(columns)


def _codes(y: NDArray[Any], name: str, objective: Classification) -> NDArray[np.int64]:
    """Places of the classes among the objective's."""
    if objective.classes:
        import pandas as pd

        values, names = _classes(y, name), objective.classes
        codes = np.asarray(pd.Index(names).get_indexer(values), np.int64)
        wrong, shown = values[codes < 0], ", ".join(map(repr, names[:SHOWN]))
    else:  # they are numbers from 0 on, also of sequences
        known = range(objective.num_outputs)
        codes = np.ascontiguousarray(_numbers(y, name).astype(np.int64))
        wrong, shown = y[(codes != y) | ~np.isin(codes, known)], f"0 to {len(known) - 1}"
    if wrong.size:
        raise ValueError(
            f"{name} has the class {wrong[:1].tolist()[0]!r}, which is none of the objective's "
            f"{shown}{', ...' * (len(objective.classes) > SHOWN)}: no output stands for it"
        )
    return codes


def _columns(y: NDArray[Any], name: str) -> NDArray[np.float32]:
    """Numbers of shape ``(n, k)``."""
    numbers = _finite(_numbers(y, name), name)
    if numbers.ndim > 2:
        raise ValueError(
            f"{name} has the shape {numbers.shape} and must have (n,) or (n, k): k numbers for "
            "each example"
        )
    return numbers.reshape(len(y), -1)


def _classes(y: NDArray[Any], name: str) -> NDArray[Any]:
    """Classes, shape ``(n,)``, none of which is missing; objects as texts."""
    if y.ndim > 1 and y.shape[1:] != (1,):
        raise ValueError(
            f"{name} has the shape {y.shape} and must have (n,): one class for each example; "
            "several labels at once are objective='multi_label', with 0 or 1 for each"
        )
    import pandas as pd

    values = y.reshape(-1)
    missing = pd.isna(values)
    if missing.any():
        raise ValueError(f"{name}[{missing.argmax()}] has no class: fill it in, or remove the row")
    return values.astype(str) if values.dtype.kind in "OU" else values


# -- both ------------------------------------------------------------------------------------------


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


def _numbers(array: NDArray[Any], name: str) -> NDArray[Any]:
    """The array, of which every value is a number."""
    if array.dtype.kind in "biuf":
        return array
    found = next((value for value in array.flat if not _is_number(value)), array.dtype)
    raise ValueError(
        f"{name} has {str(found)!r} where numbers are needed: turn texts and dates into numbers "
        "first, with pandas.get_dummies, an encoder of scikit-learn or a tokenizer, or leave the "
        "column out"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)


def _finite(array: NDArray[Any], name: str) -> NDArray[np.float32]:
    """The array as float32, without missing and infinite values."""
    with np.errstate(over="ignore"):
        single = array.astype(np.float32, copy=False)
    if not np.isfinite(single).all():
        place = np.argwhere(~np.isfinite(single))[0].tolist()
        value = array[tuple(place)]
        remedy = "scale it" if np.isfinite(value) else "fill it in, or remove the row"
        raise ValueError(
            f"{name}[{', '.join(map(str, place))}] is {value} and must be a finite float32: "
            f"{remedy}, since every model would become NaN"
        )
    return single
