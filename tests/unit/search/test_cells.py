"""What is tried in a cell: words of the experiment, of the cell, and of the cell in one setting."""

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from fl_app.search.cells import _check_spaces, _space
from fl_app.search.settings import Settings

OTHER = ["a.x=null", "a.z=interval(2,3)"]


def experiment(**spaces: Any) -> DictConfig:
    return OmegaConf.create(
        {
            "space": ["a.x=interval(0,1)", "a.y=interval(0,1)"],
            "spaces": spaces,
            "cells": {"plain": [], "other": []},
            "settings": {"s": [], "t": [], "inherited": None},
        }
    )


def tried(name: str, given: DictConfig) -> dict[str, tuple[float, float]]:
    _check_spaces(given)
    cells = {name: OmegaConf.create({"a": {"x": 0.5, "y": 0.5, "z": 2.5}})}
    space = _space(Settings(), given, name, cells)
    return {key: (each.low, each.high) for key, each in space.items()}  # type: ignore[attr-defined]


def test_a_cell_may_have_words_of_its_own_in_one_setting() -> None:
    """Later words replace earlier ones, and keep their places: the first key has the grid."""
    own = {
        "other": OTHER,
        "other@s": ["a.x=interval(4,5)", "a.y=null"],
        "plain@t": ["a.x=interval(6,7)"],
    }
    given = experiment(**own)
    assert list(tried("plain@s", given).items()) == [("a.x", (0, 1)), ("a.y", (0, 1))]
    assert list(tried("plain@t", given).items()) == [("a.x", (6, 7)), ("a.y", (0, 1))]
    assert list(tried("other@t", given).items()) == [("a.y", (0, 1)), ("a.z", (2, 3))]
    assert list(tried("other@s", given).items()) == [("a.z", (2, 3)), ("a.x", (4, 5))]


def test_spaces_of_an_inherited_setting_are_left_out_with_it() -> None:
    given = experiment(**{"plain@inherited": ["a.x=interval(8,9)"]})
    assert tried("plain@s", given)["a.x"] == (0, 1)


@pytest.mark.parametrize(
    ("spaces", "told"),
    [
        (
            {"plain@u": OTHER},
            "experiment.spaces.plain@u=... must be left out: there is no cell plain@u",
        ),
        ({"plan@s": OTHER}, "there is no cell plan@s"),
        ({"other@s": ["a.z=null"]}, "experiment.spaces.other@s=a.z=null must be of a key of"),
    ],
)
def test_spaces_without_effect_are_refused(spaces: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=r"experiment\.spaces") as error:
        tried("plain@s", experiment(**spaces))
    assert told in str(error.value)
