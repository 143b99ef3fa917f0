"""A task on arrays in a file of NumPy."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require
from fl_app.tasks.cache import Arrays, cached
from fl_app.tasks.options import check_options, check_own_data
from fl_app.tasks.own_data import (
    READER,
    choose_test,
    existing,
    file_facts,
    moments_of,
    own_task,
    pack,
    target_moments,
    task_without_data,
)
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.schema import Schema, read_schema
from fl_app.tasks.sources import reading
from fl_app.tasks.targets import encode_targets, fit_targets, ids

if TYPE_CHECKING:
    from fl_app.tasks.own_task import OwnTask

NAMES = ("x_train", "y_train", "x_test", "y_test", "client")


def arrays(
    *,
    partition: Partitioner,
    num_clients: int | None,
    path: str | None = None,
    client: bool | None = True,
    test_share: float = 0.2,
    kind: str = "auto",
    scaling: str = "standardised",
    model: str | None = None,
    schema: str | Mapping[str, Any] | None = None,
    seed: int = 0,
) -> "OwnTask":
    """Learn from arrays in a ``.npz`` file.

    It holds ``x_train`` of shape ``(n, ...)`` and ``y_train`` of shape ``(n,)`` or ``(n, k)``. It
    may hold ``x_test`` and ``y_test``, and ``client`` of shape ``(n,)``, the owner of each training
    example. Bytes in three or four dimensions are images; their channels come first or last.

    Args:
        partition: distributes the training examples, unless `client` is used.
        num_clients: N >= 1; None = all owners, or 50 where nobody owns anything.
        path: the file; None = no data, only a schema. Nothing in it is unpickled.
        client: whether each value of ``client`` is a client, if the file has it.
        test_share: share of the examples that is the test set if the file has none, in [0, 1); 0 =
            no test set.
        kind: as of `fl_app.tasks.targets.fit_targets`; here integers are classes, however many.
        scaling: ``"raw255"`` (original values), ``"unit"`` (bytes to [0, 1]) or ``"standardised"``
            (mean 0 and deviation 1 of every entry, or of every channel).
        model: a model's name; None = ``"cnn"`` for images, ``"mlp"`` for other inputs.
        schema: states shape, classes and moments, which are else those of the training examples; a
            path, or the contents of a file (`fl_app.tasks.schema`).
        seed: seed of the partition.

    Raises:
        ValueError: a value is out of its bounds, an array is missing or does not fit, or a client
            gets no examples.
    """
    check_own_data(path=path, schema=schema, kind=kind, test_share=test_share)
    check_options(scaling=scaling)
    if path is None:
        return task_without_data("arrays", schema, model)
    known = read_schema(schema)
    file = existing(path, "task.path", "file")

    def read() -> Arrays:
        found = _load(file)
        require(
            scaling != "unit" or found["x_train"].dtype == np.uint8,
            "task.scaling",
            scaling,
            f"standardised or raw255 with x_train of the type {found['x_train'].dtype}",
            "unit divides bytes by 255",
        )
        where = f"task.path={file}"
        return _encode(found, where, kind, test_share, bool(client), scaling, known)

    facts = file_facts(file)
    state = (READER, facts, kind, test_share, bool(client), scaling, known)
    found = cached(f"arrays-{file.stem}", state, read, private=(facts[0], facts))
    return own_task(
        f"arrays-{file.stem}",
        found,
        partition=partition,
        num_clients=num_clients,
        seed=seed,
        model=model,
        scaling=scaling if _are_images(found["inputs"]) else None,
    )


def _load(file: Path) -> Mapping[str, NDArray[Any]]:
    expected = "a .npz file of numbers or texts (numpy.savez); objects are not read"
    with reading(f"task.path={file}", expected), np.load(file, allow_pickle=False) as stored:
        found = {name: stored[name] for name in stored.files if name in NAMES}
        for name in ("x_train", "y_train", *(("y_test",) if "x_test" in found else ())):
            if name not in found:
                raise ValueError(f"it has no {name}, only {', '.join(stored.files)}")
    return found


def _encode(
    found: Mapping[str, NDArray[Any]],
    where: str,
    kind: str,
    test_share: float,
    owned: bool,
    scaling: str,
    schema: Schema | None,
) -> Arrays:
    inputs = _inputs(found["x_train"], f"{where}: x_train")
    targets = _targets(found["y_train"], len(inputs), f"{where}: y_train")
    owners = None
    if owned and "client" in found:
        owners = ids(found["client"])
        if owners.shape != (len(inputs),):
            raise ValueError(
                f"{where}: client has the shape {found['client'].shape}, and must name the owner "
                f"of each of the {len(inputs)} training examples"
            )
    if schema is not None:
        kind, outputs = schema.kind, schema.outputs
    elif kind == "auto" and list(targets) == ["y_train"] and targets["y_train"].dtype.kind in "iu":
        kind, outputs = fit_targets(targets, "classification", where)
    else:
        kind, outputs = fit_targets(targets, kind, where)
    encoded = encode_targets(targets, kind, outputs, where)
    tested = np.zeros(len(inputs), bool)
    test = None
    if "x_test" in found:
        test_inputs = _inputs(found["x_test"], f"{where}: x_test")
        test_targets = _targets(found["y_test"], len(test_inputs), f"{where}: y_test")
        _require_shape(test_inputs, inputs.shape[1:], f"{where}: x_test", "x_train has")
        test = test_inputs, encode_targets(test_targets, kind, outputs, where)
    else:
        groups = encoded if owners is None and kind == "classification" else owners
        tested = choose_test(len(inputs), test_share, groups, where)
        if tested.any():
            test = inputs[tested], encoded[tested]
    train = inputs[~tested], encoded[~tested]
    if schema is None:
        schema = Schema(kind, train[0].shape[1:], outputs)
        mean, deviation = moments_of(train[0])
        schema = replace(schema, mean=mean, deviation=deviation, **target_moments(kind, train[1]))
    else:
        _require_shape(inputs, schema.input_shape, f"{where}: x_train", "task.schema states")
    if not _are_images(inputs):
        train = _scaled(train[0], scaling, schema), train[1]
        test = test and (_scaled(test[0], scaling, schema), test[1])
    return pack(schema, train, test, None if owners is None else owners[~tested])


def _are_images(inputs: NDArray[Any]) -> bool:
    """Whether inputs stay bytes, which are scaled batch by batch."""
    return inputs.dtype == np.uint8 and inputs.ndim == 4


def _scaled(inputs: NDArray[Any], scaling: str, schema: Schema) -> NDArray[np.float32]:
    """Inputs that are no images, as those of the model."""
    if scaling == "unit":
        return inputs.astype(np.float32) / np.float32(255)
    if scaling == "standardised":
        require(
            len(schema.mean) == inputs.shape[1],
            "task.scaling",
            scaling,
            f"raw255 or unit with a task.schema of {len(schema.mean)} means",
            f"inputs have {inputs.shape[1]} entries",
        )
        shape = (1, -1, *(1,) * (inputs.ndim - 2))
        inputs = (inputs - np.reshape(schema.mean, shape)) / np.reshape(schema.deviation, shape)
    return inputs.astype(np.float32)


def _inputs(values: NDArray[Any], where: str) -> NDArray[Any]:
    """Finite numbers, shape ``(n, ...)``; images have their channels first."""
    if values.dtype.kind not in "biuf" or values.ndim < 2:
        raise ValueError(
            f"{where} has the type {values.dtype} and the shape {values.shape}, and must be "
            "numbers of shape (n, ...): each text needs a number, and each example one row"
        )
    if len(values) == 0:
        raise ValueError(f"{where} has no examples: there is nothing to learn from")
    if values.dtype == np.uint8 and values.ndim in (3, 4):
        if values.ndim == 3:
            return values[:, None]
        last = values.shape[3] in (1, 3, 4) and values.shape[1] not in (1, 3, 4)
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2)) if last else values
    _require_finite(values.reshape(len(values), -1), where)
    return values


def _targets(values: NDArray[Any], count: int, where: str) -> Mapping[str, NDArray[Any]]:
    """Columns of targets by name: ``y_train``, or 0, 1, ... of several."""
    if values.ndim not in (1, 2) or len(values) != count:
        raise ValueError(
            f"{where} has the shape {values.shape}, and must have a row for each of the {count} "
            f"examples: ({count},) or ({count}, k)"
        )
    if values.dtype.kind in "biuf":
        _require_finite(values.reshape(count, -1), where)
    elif values.dtype.kind not in "US":
        raise ValueError(f"{where} has the type {values.dtype}, and must be numbers or texts")
    if values.ndim == 1:
        return {"y_train": values}
    return {str(place): column for place, column in enumerate(values.T)}


def _require_finite(rows: NDArray[Any], where: str) -> None:
    wrong = np.flatnonzero(~np.isfinite(rows).all(1))
    if wrong.size:
        raise ValueError(
            f"{where} has NaN or an infinite number in row {wrong[0] + 1} and {wrong.size} rows in "
            "all: fill them in or remove these rows"
        )


def _require_shape(inputs: NDArray[Any], shape: tuple[int, ...], where: str, source: str) -> None:
    if inputs.shape[1:] != shape:
        raise ValueError(
            f"{where} has examples of shape {inputs.shape[1:]}, and {source} {shape}: the model "
            "has one shape of inputs"
        )
