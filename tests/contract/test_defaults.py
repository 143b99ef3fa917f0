"""Schedules and trainers of classes are those of conf/: `X().start(...)` is `algorithm=x`.

Where they differ, conf/ says why beside the key: ``# class default D: why``.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import pytest
from configs import ALGORITHMS, composed
from hydra.utils import get_object
from omegaconf import OmegaConf

from fl_app.asynchronous import Asynchronous
from fl_app.cli import CONF
from fl_app.client import LocalTrainer
from fl_app.runner.validate import build_schedule, build_strategy

FACTS = {"num_clients": 977, "num_versions": 978, "seed": 979}  # of a run; no class knows them
RUN = [f"{key}={value}" for key, value in FACTS.items()]

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def keywords(function: Any) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.default is not p.empty}


def settings(name: str, part: str) -> dict[str, Any]:
    node = composed(f"algorithm={name}", *RUN).algorithm[part]
    values = OmegaConf.to_container(node, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def unexplained(
    python: Mapping[str, Any], conf: Mapping[str, Any], *files: str
) -> dict[str, tuple[Any, Any]]:
    """Keys of both whose values differ, and of whose difference no file tells the reason."""
    lines = "\n".join((CONF / "algorithm" / f"{file}.yaml").read_text() for file in files)
    return {
        key: (python[key], conf[key])
        for key in python.keys() & conf.keys()
        if python[key] != conf[key]
        and conf[key] not in FACTS.values()
        and not re.search(rf"\b{key}: .*# .*\bclass default {python[key]}: \w", lines)
    }


@every_algorithm
def test_the_schedule_is_that_of_the_class(name: str) -> None:
    config = composed(f"algorithm={name}", *RUN)
    strategy, schedule = build_strategy(config), build_schedule(config)
    if isinstance(strategy, Asynchronous):
        pytest.skip("one class for all strategies of Flower, each with a schedule of its own")
    own = type(strategy)().schedule
    assert type(schedule) is type(own)
    kind = inspect.getmodule(type(schedule)).__name__.rpartition(".")[2]  # type: ignore[union-attr]
    assert unexplained(vars(own), vars(schedule), f"schedule/{kind}") == {}


@every_algorithm
def test_the_clients_options_are_those_of_the_algorithms_own_trainer(name: str) -> None:
    conf = settings(name, "client")
    python = keywords(get_object(conf["_target_"]))
    own = {key: python[key] for key in python.keys() - keywords(LocalTrainer)}
    assert unexplained(own, conf, name) == {}
