"""A task on arrays in a file of NumPy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fl_app.core.hyper import bounded
from fl_app.tasks.files import existing, reading
from fl_app.tasks.items import pair, table_of
from fl_app.tasks.own_data import KIND, OwnData, Part


@dataclass(kw_only=True)
class Arrays(OwnData):
    """Learn from arrays in a ``.npz`` file.

    It holds ``x_train`` of shape ``(n, ...)`` and ``y_train`` of shape ``(n,)`` or ``(n, k)``. It
    may hold ``x_test`` and ``y_test``, and ``client`` of shape ``(n,)``, the owner of each training
    example. Bytes in three or four dimensions are images; their channels come first or last.
    Inputs are standardised, every entry or every channel. Nothing in the file is unpickled.

    Args:
        client: whether each value of the array ``client`` is a client; False = partition=
            distributes all examples.
        kind: classification, regression, or auto: as of task=csv, but integers are always classes.
    """

    client: bool | None = True
    kind: str = bounded("auto", KIND, "unknown")

    name: ClassVar[str] = "arrays"

    def files(self) -> Sequence[Path]:
        return [existing(self.path or "", "task.path", "file")]

    def kind_of(self, train: Part) -> str:
        integers = [dtype.kind in "iu" for dtype in train.targets.dtypes] == [True]
        return "classification" if self.kind == "auto" and integers else self.kind

    def read(self) -> tuple[Part, Part | None]:
        import pandas as pd

        (file,) = self.files()
        where = f"task.path={file}"
        expected = "a .npz file of numbers or texts (numpy.savez); objects are not read"
        with reading(where, expected), np.load(file, allow_pickle=False) as stored:
            found = {name: stored[name] for name in stored.files}
        train, test = _part(found, "train", where), None
        if "x_test" in found:
            test = _part(found, "test", where)
        if self.client and "client" in found:
            shape = found["client"].shape
            if shape != (len(train.inputs),):
                raise ValueError(f"{where}: client has the shape {shape}, not an owner per example")
            train = replace(train, owners=pd.Series(found["client"]))
        return train, test


def _part(found: Mapping[str, Any], name: str, where: str) -> Part:
    """The examples for training, or those for testing.

    Raises:
        ValueError: an array is missing or does not fit the others.
    """
    x, y = f"x_{name}", f"y_{name}"
    for needed in (x, y):
        if needed not in found:
            raise ValueError(f"{where} has no {needed}, only {', '.join(found)}")
    inputs, targets = pair(found[x], found[y], f"{where}: {x}", y)
    if inputs.dtype == np.uint8 and inputs.ndim == 3:
        inputs = inputs[:, None]
    elif inputs.dtype == np.uint8 and inputs.ndim == 4:
        last = inputs.shape[3] in (1, 3, 4) and inputs.shape[1] not in (1, 3, 4)
        inputs = np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)) if last else inputs
    return Part(f"{where}: {x}", inputs, table_of(targets, y))
