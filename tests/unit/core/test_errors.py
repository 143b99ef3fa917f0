"""Checks of configuration values: one sentence with key, value, bound, consequence."""

import math
import re

import pytest

from fl_app.core.errors import (
    require,
    require_at_least,
    require_count,
    require_positive,
)


def test_a_refusal_names_key_value_bound_and_consequence() -> None:
    text = "schedule.buffer_size=5 must be between 1 and 4: the server would wait for ever"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        require(
            False, "schedule.buffer_size", 5, "between 1 and 4", "the server would wait for ever"
        )
    require(True, "schedule.buffer_size", 4, "between 1 and 4", "")


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_not_positive(value: object) -> None:
    with pytest.raises(
        ValueError, match=rf"^lr={value} must be a finite number above 0: it stops$"
    ):
        require_positive("lr", value, "it stops")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.5, math.nan, math.inf, True, None])
def test_below_the_bound(value: object) -> None:
    with pytest.raises(ValueError, match=rf"^n={value} must be a finite number >= 1: none$"):
        require_at_least("n", value, 1, "none")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -3, 2.0, 2.5, math.nan, True, "2", None])
def test_not_a_count(value: object) -> None:
    with pytest.raises(ValueError, match=rf"^k={value} must be an integer >= 1: none$"):
        require_count("k", value, "none")  # type: ignore[arg-type]
