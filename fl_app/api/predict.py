"""Predictions of a run's final model, with the run's schema."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from omegaconf import OmegaConf

from fl_app.client.build import COMMON_KEYS, instantiate
from fl_app.core.types import Array
from fl_app.record.folder import SCHEMA
from fl_app.tasks.conversion import pair
from fl_app.tasks.files import existing
from fl_app.tasks.own_data import Part, encoded_inputs, scaling_of
from fl_app.tasks.readers import Csv, channels_first
from fl_app.tasks.table import completed, unusual

if TYPE_CHECKING:
    from fl_app.tasks.task import Task


def predict(folder: Path, arrays: Mapping[str, Array], inputs: Any) -> Array:
    """See `fl_app.Result.predict`.

    Args:
        folder: of the run.
        arrays: of the model, by name.
        inputs: see there.
    """
    if not (folder / SCHEMA).is_file():
        raise ValueError(
            f"{folder} has no {SCHEMA}: its task is a Python object, or not on the user's own "
            "data; load model.npz into its model"
        )
    config: Any = OmegaConf.load(folder / "config.yaml")
    if config.algorithm.client.get("private"):
        raise ValueError(f"{folder} has a model without the layers that stay on its clients")
    settings = config.task
    settings.update({"path": None, "schema": str(folder / SCHEMA)})
    settings.update(dict.fromkeys({"test_path"} & {*settings}))
    kind: Any = instantiate(settings, leave_out=COMMON_KEYS)
    task: Task = kind()
    if settings.loss is not None:  # with a user's loss, a model predicts numbers as they are
        task = task.with_loss(settings.loss)
    schema = task.schema
    assert schema is not None
    if isinstance(kind, Csv) and isinstance(inputs, str | Path):
        inputs = kind.table(existing(str(inputs), "inputs", "file"), "inputs")
    if not isinstance(inputs, pd.DataFrame if schema.columns else np.ndarray):
        text = "a table" if schema.columns else "an array"
        raise ValueError(f"inputs must be {text}, as the model was trained on")
    if isinstance(inputs, pd.DataFrame):
        names = [column.name for column in schema.columns]
        if missing := {*names} - {*inputs}:
            text = f"{', '.join(sorted(missing))}: there are {', '.join(map(str, inputs))}"
            raise ValueError(f"inputs must have the columns {text}")
        if len(twice := inputs.columns[inputs.columns.duplicated()]):
            raise ValueError(f"inputs has two columns {twice[0]!r}: which of them is meant?")
        rule = "median" if schema.missing == "median" else "refuse"
        inputs, _ = completed(inputs.reset_index(drop=True), names, [], rule, "inputs")
    else:
        inputs = channels_first(pair(inputs, inputs, "inputs", "inputs")[0])
        task = replace(task, prepare=scaling_of(inputs, schema))
        darkest = min(schema.mean, default=0.0)
        if inputs.dtype.kind == "f" and inputs.ndim == 4 and inputs.max() <= 1 < darkest:
            means = f"the model was trained on pixels of mean {darkest:.3g}"
            warnings.warn(f"inputs: none is above 1, and {means}: give bytes", stacklevel=3)
    encoded = encoded_inputs(Part("inputs", inputs, pd.DataFrame()), schema)
    for note in unusual(schema, encoded, np.empty((len(encoded), 0))):
        warnings.warn(f"inputs: {note}", stacklevel=3)
    model = task.model()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return task.answers(model, torch.from_numpy(encoded))
