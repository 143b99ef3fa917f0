"""Rounding, clipping and the bound against overflow."""

import math

import numpy as np
import pytest

from fl_app.core.types import Vector
from fl_app.secure.fixed_point import FixedPoint, largest_scale
from fl_app.secure.masks import Integers, Mask


class Zeros(Mask):
    """A mask that hides nothing."""

    def next(self, count: int) -> Integers:
        return np.zeros(count, np.uint32)


def quantised(point: FixedPoint, vector: Vector, seed: int = 0) -> np.ndarray:
    out = np.empty(point.size, np.uint32)
    point.quantise(vector, np.random.default_rng(seed), out, Zeros(bytes(32)))
    return out


def test_a_short_upload_changes_by_less_than_one_step() -> None:
    point = FixedPoint(clip_norm=10.0, scale=1024.0, size=100)
    vector = np.random.default_rng(1).standard_normal(100).astype(np.float32) / 2
    error = point.mean(quantised(point, vector), 1.0) - vector
    assert 0 < np.abs(error).max() < 1 / 1024


def test_rounding_has_no_bias() -> None:
    point = FixedPoint(clip_norm=200.0, scale=1.0, size=10_000)
    vector = np.full(10_000, -0.3, np.float32)
    values = quantised(point, vector).view(np.int32)
    assert set(values.tolist()) == {-1, 0}
    assert abs(values.mean() + 0.3) < 5 * math.sqrt(0.21 / 10_000)


def test_a_long_upload_is_clipped_with_all_that_rounding_adds() -> None:
    point = FixedPoint(clip_norm=1.0, scale=1000.0, size=400)
    for seed in range(20):
        vector = np.random.default_rng(seed).standard_normal(400).astype(np.float32)
        values = quantised(point, vector, seed).view(np.int32)
        length = np.linalg.norm(values.astype(float)) / 1000
        assert 0.95 < length <= 1.0


def test_the_result_may_take_the_place_of_the_upload_and_a_mask_is_added() -> None:
    point = FixedPoint(clip_norm=10.0, scale=1024.0, size=64)
    vector = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    plain = quantised(point, vector)
    point.quantise(vector, np.random.default_rng(0), vector.view(np.uint32), Mask(bytes(32)))
    assert (vector.view(np.uint32) - Mask(bytes(32)).next(64) == plain).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_an_upload_that_is_not_finite_is_refused(bad: float) -> None:
    point = FixedPoint(clip_norm=10.0, scale=1024.0, size=2)
    with pytest.raises(FloatingPointError, match="the upload is not finite"):
        quantised(point, np.array([1, bad], np.float32))


def test_a_sum_at_the_bound_does_not_overflow() -> None:
    members, clip_norm = 10, 3.0
    scale = largest_scale(clip_norm, members)
    point = FixedPoint(clip_norm, scale, 1)
    largest = quantised(point, np.array([1e15], np.float32)).view(np.int32)[0]
    assert 2**29 < 16 * members * int(largest) < 2**31


def test_a_scale_that_only_leaves_rounding_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^secure_aggregation.scale=5 must be above sqrt"):
        FixedPoint(clip_norm=1.0, scale=5.0, size=100)


def test_noise_takes_its_part_of_the_range() -> None:
    """16 (10 + 12 x 5) C s < 2^31: a seventh of the scale without noise, and so an eighth."""
    assert largest_scale(3.0, 10, 5.0) == largest_scale(3.0, 10) / 8
