"""The YAML files of tasks fit what they name, defaults included."""

import importlib
import inspect
from pathlib import Path

import pytest
from configs import composed
from omegaconf import OmegaConf

from fl_app.tasks.partition import PARTITIONS

CONF = Path(__file__).parents[3] / "conf"
FILES = {
    path.stem: OmegaConf.to_container(OmegaConf.load(path))
    for path in sorted((CONF / "task").glob("*.yaml"))
}
SUPPLIED = {"partition", "num_clients", "seed"}  # by the factory


@pytest.mark.parametrize("name", FILES)
def test_keys_are_the_targets_keywords_and_defaults_agree(name: str) -> None:
    values = dict(FILES[name])
    module, _, target = values.pop("_target_").rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), target)).parameters
    assert values.keys() | SUPPLIED == parameters.keys() | SUPPLIED
    required = {key for key in values if parameters[key].default is inspect.Parameter.empty}
    # What a file has to say, because its target serves several of them.
    assert required == ({"data", "model", "scaling"} if target == "image_task" else set())
    for key in values.keys() - required - {"split"}:
        default = parameters[key].default
        assert values[key] == (list(default) if isinstance(default, tuple) else default)


def test_partitions_have_the_same_names_in_python() -> None:
    files = {path.stem for path in (CONF / "partition").glob("*.yaml")} - {
        "pathological",
        "tenth_class",
    }
    named = {name: composed(f"partition={name}").partition._target_ for name in files}
    assert named == {
        name: f"fl_app.tasks.partition.{partition.__name__}"
        for name, partition in PARTITIONS.items()
    }


def test_flwr_has_the_arguments_of_every_partitioner() -> None:
    from flwr_datasets import partitioner as theirs

    kinds = [getattr(theirs, kind) for kind in theirs.__all__ if "Vertical" not in kind]
    takes = {key for kind in kinds for key in inspect.signature(kind).parameters}
    values = dict(composed("partition=flwr").partition)
    assert (values.pop("_target_"), values.pop("partitioner")) == (
        "fl_app.tasks.partition.Flwr",
        "iid",
    )
    assert values == dict.fromkeys(takes - {"num_partitions", "partition_by"})
