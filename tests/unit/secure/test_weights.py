"""Weights decode no upload."""

import math

import numpy as np
import pytest

from fl_app.core.weighting import Weighting
from fl_app.secure.weights import LARGEST, hides_all, integer_weights, rounding


def leave_one_out(weights: list[int]) -> bool:
    """Whether the greatest common divisor without any one member is 1."""
    return all(math.gcd(*(weights[:i] + weights[i + 1 :])) == 1 for i in range(len(weights)))


def test_equal_weights_are_ones() -> None:
    assert integer_weights([0.1] * 10) == [1] * 10
    assert integer_weights([3, 3]) == [1, 1]


def test_weights_are_rounded_to_sixteenths() -> None:
    """Ages 0 to 4, each twice: (1 + age)^-1/2 is 16, 11.3, 9.2, 8 and 7.2 sixteenths."""
    exact = Weighting("polynomial", exponent=0.5).weights([0, 1, 2, 3, 4] * 2, [1] * 10)
    assert integer_weights(exact) == [16, 11, 9, 8, 7] * 2
    assert rounding(exact, [16, 11, 9, 8, 7] * 2) < 0.05


def test_a_set_that_would_decode_is_changed_by_one() -> None:
    """Nine fresh updates and one old one: 16 would divide all weights but one."""
    weights = integer_weights([1.0] * 9 + [0.7])
    assert sorted(weights) == [11, 15, *[16] * 8]
    assert leave_one_out(weights)


def test_all_weights_hide_every_upload() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        exact = rng.integers(1, 6, rng.integers(2, 12)) ** rng.choice([-0.5, -1, 3])
        weights = integer_weights(exact)
        assert all(1 <= weight <= LARGEST for weight in weights)
        assert leave_one_out(weights)


def test_the_check_is_that_of_divisors_without_any_one_member() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        weights = rng.integers(1, LARGEST + 1, rng.integers(2, 6)).tolist()
        assert hides_all(weights, range(len(weights))) == leave_one_out(weights)


def test_two_uploads_of_one_device_are_one_member() -> None:
    assert hides_all([2, 2, 1, 1], "abcd")
    assert not hides_all([2, 2, 1, 1], "abcc")


def test_bad_weights_are_refused() -> None:
    for bad in ([1.0], [1.0, 0.0], [1.0, math.nan], [1.0, math.inf]):
        with pytest.raises(ValueError, match="a secure sum needs two or more weights above 0"):
            integer_weights(bad)
