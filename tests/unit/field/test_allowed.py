"""Versions that a server allows its nodes."""

import pytest
from packaging.requirements import Requirement

from fl_app.field.allowed import outside, ranges, versions_here, written

ALLOWED = "fl-app>=0.1,<0.3 flwr>=1.41,<2 torch>=2.5"


@pytest.mark.parametrize(("told", "differs"), [
    ({"project": "0.1.0", "flower": "1.42.0", "torch": "2.9.1+cpu"}, ""),
    ({"project": "0.2.7", "flower": "1.41.0", "torch": ""}, ""),  # has no torch
    ({"project": "0.3.0"}, "fl-app 0.3.0 is not <0.3,>=0.1"),
    ({"project": "0.0.9", "flower": "2.0"},
     "fl-app 0.0.9 is not <0.3,>=0.1, flwr 2.0 is not <2,>=1.41"),
    ({"torch": "2.4.1"}, "torch 2.4.1 is not >=2.5"),
    ({"project": "0.2.0.dev1"}, ""),
    ({"project": "nobody's"}, ""),
])  # fmt: skip
def test_a_node_is_told_what_is_not_allowed(told: dict[str, str], differs: str) -> None:
    assert outside(written(ranges(ALLOWED)), told) == differs


def test_what_cannot_be_read_allows_all() -> None:
    assert outside("", {"project": "0.0.1"}) == ""
    assert outside("fl-app=>9", {"project": "0.0.1"}) == ""


def test_by_default_this_machine_and_its_patches_are_allowed() -> None:
    allowed = written(ranges())
    assert outside(allowed, versions_here()) == ""
    assert outside(allowed, {"project": "0.1.99"}) == ""
    assert outside(allowed, {"project": "0.2.0"}).startswith("fl-app 0.2.0 is not ~=0.1.0")
    assert Requirement(allowed.split()[1]).name == "flwr"


@pytest.mark.parametrize("setting", ["fl-app >= 0.1", "numpy>=2", "flwr=>1", "1.41"])
def test_a_setting_without_meaning_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=r"NODE_VERSIONS=.* must be ranges such as fl-app>=0.1"):
        ranges(setting)
