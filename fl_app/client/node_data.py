"""The task of a node with data of its own, which the server and the other nodes never see."""

import re
from copy import deepcopy
from typing import Any

from omegaconf import DictConfig

from fl_app.core.types import Indices


def kind_of(task: Any) -> str:
    """The name of a configured task, as after ``task=``; "" = unknown."""
    name = str(task.get("_target_", "")).rpartition(".")[2]
    return str(task.get("data") or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


class AnyId(list[Indices]):
    """The examples of the only client, under any index; replaces a partition.

    The server knows a node by its partition id or its node id. The draws and the state of the
    client follow from that id. It has all examples.
    """

    def __getitem__(self, client_id: Any) -> Any:
        return super().__getitem__(0)


def own_config(config: DictConfig, path: str) -> DictConfig:
    """The configuration of one client that has all examples of `path`; `config` is not changed.

    Args:
        config: of the run, as the server sent it.
        path: of the node's own data.

    Raises:
        ValueError: the run's task cannot read data of a node's own.
    """
    task = config.task
    if "path" not in task or "schema" not in task:
        raise ValueError(
            f"task._target_={task._target_} reads no data of a node's own: the run needs task=csv, "
            "image_folder, huggingface or arrays"
        )
    if task.schema is None:
        raise ValueError(
            "task.schema=null must be a schema where nodes have data of their own, or every node "
            "would encode them in its own way: `python -m fl_app.schema` writes one"
        )
    config = deepcopy(config)
    # All examples are the client's: none are for a test set, and no column says whose a row is.
    changes = {"client": None, "test_path": None, "test_share": 0.0}
    supported = {key: value for key, value in changes.items() if key in task}
    config.task.update({"path": path, **supported})
    config.partition = {"_target_": "fl_app.tasks.partition.Iid"}
    config.num_clients = 1
    return config


def too_few(task: Any) -> str:
    """Why a client cannot train or validate on its examples; "" = it can."""
    training = task.partition[0].size
    validation = task.validation[0].size if task.validation else 0
    if training and (validation or not task.validation):
        return ""
    minimum = "2 with task.holdout > 0" if task.validation else "1"
    return f"there are {training + validation}, and a client needs at least {minimum}"
