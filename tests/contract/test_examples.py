"""Every algorithm's docstring shows one aggregation by hand."""

import doctest
import sys

import numpy as np
import pytest
from configs import NAMES, composed
from hydra.utils import get_class

from fl_app.core.types import GlobalModel, Update


@pytest.mark.parametrize("name", NAMES)
def test_the_example_does_what_it_says(name: str) -> None:
    algorithm = get_class(composed(f"algorithm={name}").algorithm.strategy._target_)
    names = vars(sys.modules[algorithm.__module__])
    given = {**names, "np": np, "GlobalModel": GlobalModel, "Update": Update}
    (found,) = doctest.DocTestFinder(recurse=False).find(algorithm, globs=given)
    shown = any(".aggregate(model, " in example.source for example in found.examples)
    assert shown, (
        f"the docstring of {algorithm.__name__} needs Examples: with .aggregate(model, ...)"
    )
    assert doctest.DocTestRunner().run(found).failed == 0
