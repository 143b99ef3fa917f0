"""Every algorithm's docstring shows one aggregation by hand."""

import doctest
import sys
from typing import Any

import numpy as np
import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from fl_app.cli import CONF
from fl_app.core.types import GlobalModel, Update

FILES = [OmegaConf.load(path) for path in (CONF / "algorithm").glob("*.yaml")]
TARGETS = sorted(OmegaConf.select(file, "strategy._target_", default="") for file in FILES)
CLASSES = [get_class(target) for target in TARGETS if target.startswith("fl_app.algorithms.")]


@pytest.mark.parametrize("algorithm", CLASSES, ids=lambda cls: cls.__name__)
def test_the_example_does_what_it_says(algorithm: type[Any]) -> None:
    names = vars(sys.modules[algorithm.__module__])
    given = {**names, "np": np, "GlobalModel": GlobalModel, "Update": Update}
    (found,) = doctest.DocTestFinder(recurse=False).find(algorithm, globs=given)
    assert any(".aggregate(model, " in example.source for example in found.examples)
    assert doctest.DocTestRunner().run(found).failed == 0
