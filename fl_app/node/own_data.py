"""Data that a node has of its own: ``data=PATH`` of its configuration.

What goes wrong with them is told to the server without quoting the data. The node's log has the
whole reason, as the cause of the error.
"""

import os
from typing import TYPE_CHECKING

from flwr.app import Context

from fl_app.flower import names

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fl_app.client import TrainingTask


def path_of(context: Context) -> str | None:
    """Path of the node's own data; None = it has none.

    Raises:
        ValueError: nothing can be found at that path.
    """
    path = context.node_config.get(names.DATA)
    if path is None:
        return None
    try:
        os.stat(str(path))
    except OSError as error:
        raise ValueError(
            f"this node's own data cannot be found ({error.strerror}): DATA in its node.env, or "
            f"{names.DATA} in its node config, must be their path"
        ) from error
    return str(path)


def load(config: "DictConfig", path: str) -> "TrainingTask":
    """The run's task with the node's own data.

    Raises:
        ValueError: the task reads no such data, or these cannot be read or are too few.
    """
    # Imported here, because torch takes seconds to import on a small device.
    from fl_app.client.build import build_task
    from fl_app.client.node_data import kind_of, own_config, too_few

    own_config(config, path)  # what it refuses quotes the run's configuration alone
    try:
        task = build_task(config, path)
    except Exception as error:
        name = kind_of(config.task)
        raise ValueError(
            f"this node's own data cannot be read as task={name} with the run's schema: the node's "
            "log says why, and so does `python -m fl_app.field doctor` on it"
        ) from error
    if problem := too_few(task):
        raise ValueError(f"this node's own data are too few: {problem}")
    return task
