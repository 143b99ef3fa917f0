"""The YAML files of tasks and partitions fit what they name, defaults included."""

import importlib
import inspect
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fl_app.tasks.partition import PARTITIONS

CONF = Path(__file__).parents[3] / "conf"
# A file without a target chooses values of another one, as pathological does of flwr.
FILES = sorted(
    path
    for group in ("task", "partition")
    for path in (CONF / group).glob("*")
    if "_target_" in OmegaConf.load(path)
)
SUPPLIED = {"partition", "num_clients", "seed"}  # by the factory


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_keys_are_the_targets_keywords_and_defaults_agree(path: Path) -> None:
    values = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(values, dict)
    module, _, name = str(values.pop("_target_")).rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    assert values.keys() | SUPPLIED == parameters.keys() | SUPPLIED
    required = {
        str(key) for key in values if parameters[str(key)].default is inspect.Parameter.empty
    }
    # What a file has to say, because its target serves several of them.
    assert required == ({"data", "model", "scaling"} if name == "image_task" else set())
    for key in values.keys() - required - {"split"}:
        default = parameters[str(key)].default
        assert values[key] == (list(default) if isinstance(default, tuple) else default)


def test_partitions_have_the_same_names_in_python() -> None:
    named = {
        path.stem: OmegaConf.load(path)["_target_"]
        for path in FILES
        if path.parent.name == "partition"
    }
    assert named == {
        name: f"fl_app.tasks.partition.{partition.__name__}"
        for name, partition in PARTITIONS.items()
    }
