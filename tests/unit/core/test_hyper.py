"""Bounds of hyper-parameters, declared as dataclass fields."""

import math
import re
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from fl_app.core.errors import require_at_least, require_count, require_positive
from fl_app.core.hyper import (
    POSITIVE,
    at_least,
    bounded,
    check_bounds,
    count,
    one_of,
    or_none,
    within,
)


@dataclass(kw_only=True)
class Settings:
    rate: float = bounded(0.5, within("(0, 1]"), "it is a share")
    name: str = "any"

    def __post_init__(self):
        check_bounds("strategy", self)


@pytest.mark.parametrize(
    ("bound", "good", "bad"),
    [
        (POSITIVE, [1, 1e-9, np.float32(2)], [0, -1, float("nan"), float("inf"), "x", None, True]),
        (at_least(2), [2, 2.5], [1.999, float("inf"), "2"]),
        (count(), [1, np.int64(3)], [0, 1.0, True, "1", None]),
        (count(0), [0], [-1]),
        (within("(0, 1]"), [1e-9, 1], [0, 1.001, float("nan"), "0.5"]),
        (within("[-1, 1)"), [-1, 0.999], [1, -1.001]),
        (one_of("a", "b", "c"), ["a", "c"], ["d", None, 1]),
        (or_none(POSITIVE), [None, 1], [0, "x"]),
    ],
)
def test_what_a_bound_holds(bound, good, bad):
    assert [bound.holds(value) for value in good] == [True] * len(good)
    assert [bound.holds(value) for value in bad] == [False] * len(bad)


def test_a_value_beyond_its_bound_is_told_with_its_consequence():
    assert Settings(rate=1).rate == 1
    told = re.escape("strategy.rate=2 must be in (0, 1]: it is a share")
    with pytest.raises(ValueError, match=f"^{told}$"):
        Settings(rate=2)


@pytest.mark.parametrize(
    ("refuse", "values", "bound"),
    [
        (
            require_positive,
            [0, -1.0, math.nan, math.inf, True, "1", None],
            "a finite number above 0",
        ),
        (partial(require_at_least, bound=1), [0.5, math.nan, True, None], "a finite number >= 1"),
        (require_count, [0, 2.0, 2.5, math.nan, True, "2", None], "an integer >= 1"),
    ],
)
def test_numbers_that_are_refused(refuse, values, bound):
    for value in values:
        with pytest.raises(ValueError, match=f"^lr={value!r} must be {bound}: none$"):
            refuse("lr", value, consequence="none")
    refuse("lr", 1, consequence="none")
