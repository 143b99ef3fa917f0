"""The task of a node with data of its own."""

from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf

from fl_app.client.node_data import AnyId, own_config, too_few

CONFIG = """
num_clients: null
task: {_target_: a.task, path: server.csv, schema: "{}", test_path: t.csv, client: who, model: mlp}
partition: {_target_: a.partition}
"""


def test_all_examples_of_the_path_are_the_clients() -> None:
    config = OmegaConf.create(CONFIG)
    own = own_config(config, "/srv/mine.csv")  # type: ignore[arg-type]
    assert own.task == {
        **{"_target_": "a.task", "path": "/srv/mine.csv", "schema": "{}"},
        **{"test_path": None, "client": None, "model": "mlp"},
    }
    assert own.num_clients == 1
    assert own.partition == {"_target_": "fl_app.tasks.partition.Iid"}
    assert config == OmegaConf.create(CONFIG)


def test_one_client_under_any_id() -> None:
    parts = AnyId(np.arange(3))
    assert len(parts) == 1
    for client_id in (0, 7, 2**64 - 1):
        assert parts[client_id].tolist() == [0, 1, 2]
    assert len(list(parts)) == 1


@pytest.mark.parametrize(
    ("train", "kept", "holdout", "enough"),
    [(1, 0, 0.0, True), (0, 0, 0.0, False), (1, 1, 0.1, True), (1, 0, 0.1, False)],
)
def test_too_few(train: int, kept: int, holdout: float, enough: bool) -> None:
    task = SimpleNamespace(
        partition=[np.arange(train)],
        validation=[np.arange(kept)] if holdout else (),
        holdout=holdout,
    )
    assert (too_few(task) == "") == enough
