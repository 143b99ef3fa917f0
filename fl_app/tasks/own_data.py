"""Tasks on data of the user's own: what their readers share."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_app.core.errors import require
from fl_app.tasks.augmentation import AUGMENTATIONS
from fl_app.tasks.cache import Arrays
from fl_app.tasks.client_examples import CHUNK
from fl_app.tasks.held_out import held_out
from fl_app.tasks.models import architecture
from fl_app.tasks.moments import moments
from fl_app.tasks.objective import Classification, MultiLabel, Objective, Regression
from fl_app.tasks.options import FLAT_MODELS, USUAL_CLIENTS
from fl_app.tasks.own_task import OwnTask
from fl_app.tasks.partition import Natural, Partitioner, make_partition
from fl_app.tasks.scaling import Scaling, make_scaling
from fl_app.tasks.schema import Schema, read_schema

log = logging.getLogger(__name__)

READER = 2  # of what the cache holds of a user's data; a new number makes old entries invalid


def own_task(
    name: str,
    arrays: Mapping[str, NDArray[Any]],
    *,
    partition: Partitioner,
    num_clients: int | None,
    seed: int,
    model: str | None,
    scaling: str | None = None,
    augment: str | None = None,
    source: str = "own",
) -> OwnTask:
    """The task on what a reader has read.

    Args:
        name: of the task.
        arrays: as `pack` gives them.
        partition: distributes the training examples, unless their owners are known: then each
            owner is a client.
        num_clients: N >= 1; None = as many as the partition decides, or all owners, or
            `USUAL_CLIENTS` where they are not known.
        seed: seed of the partition.
        model: a model's name; None = ``"cnn"`` for images, ``"mlp"`` for other inputs.
        scaling: as of `fl_app.tasks.scaling.make_scaling`; None = the inputs are the model's.
        augment: random change of training batches, as of `fl_app.tasks.images.image_task`.
        source: of the data.

    Raises:
        ValueError: the model does not fit, or a client gets no data.
    """
    schema = schema_of(arrays)
    if "left_out" in arrays:
        _tell(f"{name}: task.missing=drop leaves out {arrays['left_out'].item()} rows")
    owners = arrays.get("owners")
    if owners is not None and not getattr(partition, "by_owner", False):
        partition = Natural()
    if num_clients is None and not getattr(partition, "decides", False):
        num_clients = USUAL_CLIENTS
        if owners is not None:
            sizes = np.unique(owners, return_counts=True)[1]
            num_clients = int((sizes >= getattr(partition, "min_size", 1)).sum())
    targets = torch.from_numpy(arrays["targets"])
    task = _empty(name, schema, model)
    tested = "test_targets" in arrays
    strata = task.objective.strata(targets)
    return replace(
        task,
        inputs=torch.from_numpy(arrays["inputs"]),
        targets=targets,
        test_inputs=torch.from_numpy(arrays["test_inputs"]) if tested else None,
        test_targets=torch.from_numpy(arrays["test_targets"]) if tested else None,
        partition=make_partition(
            partition, strata, num_clients, seed, owners, arrays.get("column")
        ),
        prepare=None if scaling is None else scaling_of(schema, scaling),
        augment=None if augment is None else AUGMENTATIONS[augment],
        source=source,
        by_owner=owners is not None,
    )


@cache
def _tell(text: str) -> None:
    """Tell something once, however often a process builds the task."""
    log.warning(text)


def task_without_data(
    name: str,
    schema: str | Mapping[str, Any] | None,
    model: str | None,
) -> OwnTask:
    """The task of a server whose devices own the data: a model, and no examples.

    Raises:
        ValueError: there is no schema, or the model does not fit.
    """
    known = read_schema(schema)
    if known is None:
        raise ValueError(
            "task.path=null must be the data, or task.schema must be given: nothing says what the "
            "model's inputs and outputs are"
        )
    return _empty(name, known, model)


def _empty(name: str, schema: Schema, model: str | None) -> OwnTask:
    shape = schema.input_shape
    if model is None:
        model = "cnn" if len(shape) == 3 else "mlp"
    # These take inputs of any shape; two sizes would be taken for those of a text.
    taken = (prod(shape),) if model in FLAT_MODELS else shape
    num_targets = () if schema.kind == "classification" else (schema.num_outputs,)
    return OwnTask(
        name=name,
        objective=objective_of(schema),
        architecture=architecture(model, taken, schema.num_outputs),
        inputs=torch.empty(0, *shape),
        targets=torch.empty(0, *num_targets, dtype=torch.float32 if num_targets else torch.int64),
        source="own",
        # Activations grow with an input: those of 500 large images take gigabytes.
        test_chunk=max(1, min(CHUNK, CHUNK * 3 * 32 * 32 // prod(shape))),
        schema=schema,
    )


def objective_of(schema: Schema) -> Objective:
    """Loss and metrics for a schema's outputs."""
    if schema.kind == "classification":
        return Classification(schema.num_outputs, classes=schema.outputs)
    if schema.kind == "multi_label":
        return MultiLabel(schema.num_outputs, labels=schema.outputs)
    return Regression(
        schema.num_outputs, mean=schema.target_mean, deviation=schema.target_deviation
    )


def scaling_of(schema: Schema, scaling: str) -> Scaling:
    """The scaling of a schema's images.

    Raises:
        ValueError: the scaling is unknown, or the schema does not have the moments that it needs.
    """
    require(
        scaling != "standardised" or len(schema.mean) > 0,
        "task.scaling",
        scaling,
        "unit or raw255 with a schema that has no mean and deviation",
        "the images could not be standardised as others are",
    )
    return make_scaling(scaling, 255.0, np.array([schema.mean, schema.deviation]))


# -- what a reader gives ---------------------------------------------------------------------------


def pack(
    schema: Schema,
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]] | None,
    owners: NDArray[np.int64] | None,
    column: NDArray[Any] | None = None,
) -> Arrays:
    """Arrays for the cache.

    Args:
        schema: of the data.
        train: inputs and targets, n of each.
        test: as `train`; None = there is no test set.
        owners: whose each training example is, shape ``(n,)``; None = not known.
        column: values by which a partition distributes the training examples, shape ``(n,)``,
            numbers or texts; None = there are none.
    """
    text = np.frombuffer(schema.to_json().encode(), np.uint8)
    arrays: Arrays = {"inputs": train[0], "targets": train[1], "schema": text}
    if test is not None:
        arrays |= {"test_inputs": test[0], "test_targets": test[1]}
    if owners is not None:
        arrays["owners"] = owners
    if column is not None:
        arrays["column"] = column if column.dtype.kind in "biuf" else column.astype(str)
    return arrays


def schema_of(arrays: Mapping[str, NDArray[Any]]) -> Schema:
    """The schema in `pack`'s arrays."""
    schema = read_schema(arrays["schema"].tobytes().decode())
    assert schema is not None
    return schema


def choose_test(
    count: int, share: float, groups: NDArray[np.int64] | None, where: str
) -> NDArray[np.bool_]:
    """Which examples are the test set, shape ``(n,)``, see `held_out`.

    Args:
        count: n, the number of examples.
        share: of them, in [0, 1); 0 = none.
        groups: class or owner of each; None = there are neither.
        where: the data, for messages.

    Raises:
        ValueError: there are too few examples.
    """
    if share == 0:
        return np.zeros(count, bool)
    if groups is None:
        groups = np.zeros(count, np.int64)
    chosen = held_out(groups, share)
    if not chosen.any():
        raise ValueError(
            f"{where} has {count} examples, too few for a test set of task.test_share={share}: "
            "every class or client keeps one for training; give more, a larger share, test data "
            "of their own, or task.test_share=0 for no test set"
        )
    return chosen


def moments_of(inputs: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of every channel or entry; the deviation of a constant is 1.

    Args:
        inputs: shape ``(n, channels, ...)`` or ``(n, entries)``.
    """
    if inputs.dtype == np.uint8 and inputs.ndim == 4:
        mean, deviation = moments(inputs)
    else:
        axes = tuple(axis for axis in range(inputs.ndim) if axis != 1)
        mean, deviation = inputs.mean(axes, np.float64), inputs.std(axes, np.float64)
    deviation = np.where(deviation > 1e-10 * np.abs(mean), deviation, 1.0)  # else it is rounding
    return tuple(mean.tolist()), tuple(deviation.tolist())


def target_moments(kind: str, targets: NDArray[Any]) -> dict[str, Any]:
    """Keywords of a `Schema`: mean and deviation of training targets, if they are numbers."""
    if kind != "regression":
        return {}
    mean, deviation = moments_of(targets)
    return {"target_mean": mean, "target_deviation": deviation}


def file_facts(path: Path) -> tuple[str, int, int]:
    """What tells that a file has changed: its place, size and time of change."""
    stat = path.stat()
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns


def existing(path: str, key: str, what: str) -> Path:
    """A path that exists.

    Args:
        path: as the user gives it.
        key: of the configuration.
        what: ``"file"`` or ``"folder"``.

    Raises:
        ValueError: it does not exist, or is something else.
    """
    found = Path(path).expanduser()
    fits = found.is_dir() if what == "folder" else found.is_file()
    problem = "it is something else" if found.exists() else "it does not exist"
    require(fits, key, path, f"a {what}", f"{problem} (seen from {Path.cwd()})")
    return found


def folder_of(path: str, key: str) -> Path | None:
    """The folder of this name; None = it is the name of a data set on the hub.

    Raises:
        ValueError: it is neither.
    """
    if Path(path).expanduser().is_dir():
        return Path(path).expanduser()
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        existing(path, key, "folder")  # raises
    return None
