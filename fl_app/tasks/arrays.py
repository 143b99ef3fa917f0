"""A task on arrays in a file of NumPy."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_app.core.errors import require
from fl_app.tasks import own_data as own
from fl_app.tasks.cache import Arrays
from fl_app.tasks.options import check_options, check_own_data
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.schema import read_schema
from fl_app.tasks.sources import reading


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
) -> own.OwnTask:
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
        kind: as of `fl_app.tasks.table.fit_targets`; here integers are classes, however many.
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
        return own.task_without_data("arrays", schema, model)
    known = read_schema(schema)
    file = own.existing(path, "task.path", "file")

    def read() -> Arrays:
        train, test = _parts(file, owned=bool(client))
        values = train.inputs
        bound = f"standardised or raw255 with x_train of the type {values.dtype}"
        fits = scaling != "unit" or values.dtype == np.uint8
        require(fits, "task.scaling", scaling, bound, "unit divides bytes by 255")
        integers = [dtype.kind in "iu" for dtype in train.targets.dtypes] == [True]
        return own.encode(
            train,
            test,
            kind="classification" if kind == "auto" and integers else kind,
            test_share=test_share,
            schema=known,
            scaling=scaling,
        )

    return own.own_task(
        "arrays",
        file,
        [file],
        (kind, test_share, bool(client), scaling, known),
        read,
        partition=partition,
        num_clients=num_clients,
        seed=seed,
        model=model,
        scaling=scaling,
    )


def _parts(file: Path, *, owned: bool) -> tuple[own.Part, own.Part | None]:
    """The training examples, and those for testing if the file has any.

    Raises:
        ValueError: an array is missing or does not fit the others.
    """
    import pandas as pd

    where = f"task.path={file}"
    expected = "a .npz file of numbers or texts (numpy.savez); objects are not read"
    with reading(where, expected), np.load(file, allow_pickle=False) as stored:
        found = {name: stored[name] for name in stored.files}

    def part(name: str) -> own.Part:
        x, y = f"x_{name}", f"y_{name}"
        for needed in (x, y):
            if needed not in found:
                raise ValueError(f"{where} has no {needed}, only {', '.join(found)}")
        inputs, targets = found[x], found[y]
        shapes = f"{where}: {x} has the type {inputs.dtype} and the shape {inputs.shape}, and {y} "
        shapes += f"the shape {targets.shape}: "
        if inputs.dtype.kind not in "biuf" or inputs.ndim < 2 or len(inputs) == 0:
            raise ValueError(f"{shapes}{x} must be numbers of shape (n, ...), a row per example")
        if targets.ndim not in (1, 2) or len(targets) != len(inputs):
            raise ValueError(f"{shapes}{y} must have the shape (n,) or (n, k), a row per example")
        if inputs.dtype == np.uint8 and inputs.ndim == 3:
            inputs = inputs[:, None]
        elif inputs.dtype == np.uint8 and inputs.ndim == 4:
            last = inputs.shape[3] in (1, 3, 4) and inputs.shape[1] not in (1, 3, 4)
            inputs = np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)) if last else inputs
        for key, values in ((x, inputs), (y, targets)):
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                row = int((~np.isfinite(values.reshape(len(values), -1)).all(1)).argmax())
                raise ValueError(f"{where}: {key} has NaN or an infinite number in row {row + 1}")
        names = ["y_train"] if targets.ndim == 1 else [*map(str, range(targets.shape[1]))]
        table = pd.DataFrame(targets.reshape(len(targets), -1), columns=names)
        return own.Part(f"{where}: {x}", inputs, table)

    train = part("train")
    if owned and "client" in found:
        shape = found["client"].shape
        if shape != (len(train.inputs),):
            raise ValueError(f"{where}: client has the shape {shape}, not an owner per example")
        train = replace(train, owners=pd.Series(found["client"]))
    return train, part("test") if "x_test" in found else None
