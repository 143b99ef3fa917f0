"""Tasks on data of the user's own: what their readers share."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_app.core.errors import require
from fl_app.tasks.augmentation import AUGMENTATIONS
from fl_app.tasks.cache import Arrays, cached, file_facts
from fl_app.tasks.models import architecture
from fl_app.tasks.objective import objective_of
from fl_app.tasks.options import FLAT_MODELS, USUAL_CLIENTS
from fl_app.tasks.partition import Natural, Partitioner, make_partition
from fl_app.tasks.scaling import are_images, make_scaling, moments_of
from fl_app.tasks.schema import Schema, read_schema
from fl_app.tasks.task import Task, chunk_of

if TYPE_CHECKING:
    import pandas as pd

    from fl_app.tasks.table import Roles

READER = 4  # of what the cache holds of a user's data; a new number makes old entries invalid
STREAM = 0x7465_7374_2073_6574  # keeps the test set's random numbers apart from all others

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class OwnTask(Task):
    """A task on a user's data.

    Attributes:
        schema: what must be known to encode other data alike.
        by_owner: whether its clients are the owners that the data name.
    """

    schema: Schema
    by_owner: bool = False


@dataclass(frozen=True, eq=False)
class Part:
    """Examples for training or for testing, as a reader finds them.

    Attributes:
        where: the data, for messages.
        inputs: columns of a table, n rows; or an array of shape ``(n, ...)``, whose bytes in four
            dimensions are images.
        targets: target columns, n rows.
        owners: whose each example is, n values; None = nobody's.
    """

    where: str
    inputs: "pd.DataFrame | NDArray[Any]"
    targets: "pd.DataFrame"
    owners: "pd.Series | None" = None


def part_of(
    table: "pd.DataFrame", roles: "Roles", missing: str, schema: Schema | None, where: str
) -> Part:
    """The examples in the rows of a table.

    Raises:
        ValueError: a column or a value is missing.
    """
    from fl_app.tasks.table import completed  # loads pandas, which takes a second

    inputs, targets = roles.resolve(table, schema, where)
    owner = [roles.client] if roles.client else []
    whole = completed(table, inputs, [*targets, *owner], missing, where)
    if left_out := len(table) - len(whole):
        log.warning("%s: task.missing=drop leaves out %d rows", where, left_out)
    return Part(where, whole[inputs], whole[targets], whole[owner[0]] if owner else None)


def encode(
    train: Part,
    test: Part | None,
    *,
    kind: str,
    test_share: float,
    schema: Schema | None,
    categories: Sequence[str] = (),
    missing: str = "refuse",
    scaling: str = "standardised",
) -> Arrays:
    """Arrays of a task, and its schema in bytes, from what a reader has found.

    Args:
        train: examples for training.
        test: examples for testing; None = a share of `train`.
        kind: as of `fl_app.tasks.table.fit_targets`.
        test_share: this share, in [0, 1).
        schema: states the encoding; None = it is fitted to the training examples.
        categories: columns of a table whose numbers are names.
        missing: one of `fl_app.tasks.schema.MISSING`, for a new schema.
        scaling: of arrays that are no images.

    Raises:
        ValueError: inputs or targets cannot be encoded, or there are too few examples.
    """
    from fl_app.tasks.table import (
        codes_of,
        encode_targets,
        fit_columns,
        fit_targets,
        in_order,
        names_of,
    )

    where = train.where
    if schema is None:
        kind, outputs = fit_targets(train.targets, kind, where)
    else:
        kind, outputs = schema.kind, schema.outputs
    targets = encode_targets(train.targets, kind, outputs, where)
    groups = targets if kind == "classification" else np.zeros(len(targets), np.int64)
    owners = None
    if train.owners is not None:
        groups = owners = codes_of(train.owners, in_order(names_of(train.owners)), where)
    tested = choose_test(groups, 0 if test else test_share, where)
    if schema is None:
        names = tuple(map(str, train.targets))
        schema = Schema(kind, (1,), outputs, names, missing=missing)
        if kind == "regression":
            mean, deviation = moments_of(targets[~tested])
            schema = replace(schema, target_mean=mean, target_deviation=deviation)
        if isinstance(train.inputs, np.ndarray):
            shape = train.inputs.shape[1:]
            mean, deviation = moments_of(train.inputs[~tested])
            schema = replace(schema, input_shape=shape, mean=mean, deviation=deviation)
        else:
            fill = missing == "median"
            columns = fit_columns(train.inputs, ~tested, categories, where, fill=fill)
            width = sum(column.width for column in columns)
            schema = replace(schema, input_shape=(width,), columns=columns)
    inputs = _inputs(train, schema, scaling)
    arrays = {
        "schema": np.frombuffer(schema.to_json().encode(), np.uint8),
        "inputs": inputs[~tested],
        "targets": targets[~tested],
    }
    if test is not None:
        arrays["test_inputs"] = _inputs(test, schema, scaling)
        arrays["test_targets"] = encode_targets(test.targets, kind, outputs, test.where)
    elif tested.any():
        arrays |= {"test_inputs": inputs[tested], "test_targets": targets[tested]}
    return arrays if owners is None else {**arrays, "owners": owners[~tested]}


def _inputs(part: Part, schema: Schema, scaling: str) -> NDArray[Any]:
    """Inputs of the model; bytes of images, which are scaled batch by batch."""
    from fl_app.tasks.table import encode_columns

    inputs = part.inputs
    if not isinstance(inputs, np.ndarray):
        return encode_columns(inputs, schema.columns, part.where)
    if inputs.shape[1:] != schema.input_shape:
        raise ValueError(
            f"{part.where} has examples of shape {inputs.shape[1:]}, and task.schema or the "
            f"training examples state {schema.input_shape}: the model has one shape of inputs"
        )
    if are_images(inputs):
        return inputs
    if scaling != "standardised":
        return inputs.astype(np.float32) / np.float32(255 if scaling == "unit" else 1)
    _require_moments(schema, scaling)
    shape = (1, -1, *(1,) * (inputs.ndim - 2))
    scaled = (inputs - np.reshape(schema.mean, shape)) / np.reshape(schema.deviation, shape)
    return np.asarray(scaled, np.float32)


def choose_test(groups: NDArray[np.int64], share: float, where: str) -> NDArray[np.bool_]:
    """Which examples are for testing, shape ``(n,)``; equal arguments give equal examples.

    The share holds in every group up to one example, and every group keeps one for training. The
    choice does not depend on a run's seed, so that all runs are tested on the same examples.

    Args:
        groups: class or owner of each example, shape ``(n,)``.
        share: of all examples, in [0, 1); 0 = none.
        where: the data, for messages.

    Raises:
        ValueError: there are too few examples.
    """
    order = np.random.default_rng(STREAM).permutation(groups.size)
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.unique(groups, return_counts=True)[1]
    kept = np.cumsum(sizes) - sizes  # the first of every group
    free = np.delete(order, kept)
    count = min(round(share * groups.size), free.size)
    if share and not count:
        raise ValueError(
            f"{where} has {groups.size} examples, too few for a test set of "
            f"task.test_share={share}: every class or client keeps one for training; give more, a "
            "larger share, test data of their own, or task.test_share=0 for no test set"
        )
    chosen = np.zeros(groups.size, bool)
    # Evenly spaced among examples sorted by group.
    chosen[free[((np.arange(count) + 0.5) * free.size / max(count, 1)).astype(np.int64)]] = True
    return chosen


# -- tasks -----------------------------------------------------------------------------------------


def own_task(
    kind_of_data: str,
    place: Path | str,
    files: Sequence[Path],
    keys: object,
    read: Callable[[], Arrays],
    *,
    partition: Partitioner,
    num_clients: int | None,
    seed: int,
    model: str | None,
    scaling: str = "raw255",
    augment: str | None = None,
    source: str = "own",
) -> OwnTask:
    """The task on a user's data, which are read unless the cache has them.

    Args:
        kind_of_data: first part of the task's name.
        place: of the data; its name without an ending is the rest of the task's name.
        files: if one of them changes, the data are read again.
        keys: of the configuration that `read` depends on.
        read: reads and encodes the data.
        partition: distributes the training examples, unless their owners are known: then each
            owner is a client.
        num_clients: N >= 1; None = as many as the partition decides, or all owners, or
            `USUAL_CLIENTS` where they are not known.
        seed: seed of the partition.
        model: a model's name; None = ``"cnn"`` for images, ``"mlp"`` for other inputs.
        scaling: of images, as of `fl_app.tasks.scaling.make_scaling`.
        augment: random change of training batches, as of `fl_app.tasks.images.image_task`.
        source: of the data.

    Raises:
        ValueError: the data cannot be read, the model does not fit, or a client gets no data.
    """
    resolved = Path(place).resolve()
    name = f"{kind_of_data}-{resolved.name if resolved.is_dir() else Path(place).stem}"
    arrays = cached(name, (READER, file_facts(files), keys), read, private=place)
    schema = read_schema(arrays["schema"].tobytes().decode())
    assert schema is not None
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
    strata = task.objective.strata(targets)
    tests = (arrays.get("test_inputs"), arrays.get("test_targets"))
    test_inputs, test_targets = (None if part is None else torch.from_numpy(part) for part in tests)
    prepare = None
    if are_images(arrays["inputs"]):
        if scaling == "standardised":
            _require_moments(schema, scaling)
        prepare = make_scaling(scaling, 255.0, np.array([schema.mean, schema.deviation]))
    return replace(
        task,
        inputs=torch.from_numpy(arrays["inputs"]),
        targets=targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        partition=make_partition(partition, strata, num_clients, seed, owners),
        prepare=prepare,
        augment=None if augment is None else AUGMENTATIONS[augment],
        source=source,
        by_owner=owners is not None,
    )


def _require_moments(schema: Schema, scaling: str) -> None:
    bound = f"unit or raw255 with a task.schema that has {len(schema.mean)} means"
    fits = len(schema.mean) == schema.input_shape[0]
    told = f"inputs have {schema.input_shape[0]} channels or entries"
    require(fits, "task.scaling", scaling, bound, told)


def task_without_data(
    name: str, schema: str | Mapping[str, Any] | None, model: str | None
) -> OwnTask:
    """The task of a server whose devices own the data: a model, and no examples.

    Raises:
        ValueError: there is no schema, or the model does not fit.
    """
    known = read_schema(schema)
    assert known is not None, "fl_app.tasks.options.check_own_data refuses this"
    return _empty(name, known, model)


def _empty(name: str, schema: Schema, model: str | None) -> OwnTask:
    shape, num_outputs = schema.input_shape, len(schema.outputs)
    if model is None:
        model = "cnn" if len(shape) == 3 else "mlp"
    # These take inputs of any shape; two sizes would be taken for those of a text.
    taken = (prod(shape),) if model in FLAT_MODELS else shape
    num_targets = () if schema.kind == "classification" else (num_outputs,)
    return OwnTask(
        name=name,
        objective=objective_of(
            schema.kind, schema.outputs, schema.target_mean, schema.target_deviation
        ),
        architecture=architecture(model, taken, num_outputs),
        inputs=torch.empty(0, *shape),
        targets=torch.empty(0, *num_targets, dtype=torch.float32 if num_targets else torch.int64),
        source="own",
        test_chunk=chunk_of(shape),
        schema=schema,
    )


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
