"""Rounding and clipping, the key stream, and weights that decode no upload."""

import math

import numpy as np
import pytest
from secure_world import NoMask

from fl_app.core.weighting import Weighting
from fl_app.secure.integers import (
    BLOCK,
    LARGEST,
    FixedPoint,
    Mask,
    hides_all,
    integer_weights,
    largest_scale,
    rounding,
    sum_of_masks,
)


def quantise(point, vector, seed=0):
    out = np.empty(point.size, np.uint32)
    point.quantise(vector, np.random.default_rng(seed), out, NoMask(bytes(32)))
    return out


def test_a_short_upload_changes_by_less_than_one_step():
    point = FixedPoint(clip_norm=10.0, scale=1024.0, size=100)
    vector = np.random.default_rng(1).standard_normal(100).astype(np.float32) / 2
    error = point.mean(quantise(point, vector), 1.0) - vector
    assert 0 < np.abs(error).max() < 1 / 1024


def test_rounding_has_no_bias():
    point = FixedPoint(clip_norm=200.0, scale=1.0, size=10_000)
    vector = np.full(10_000, -0.3, np.float32)
    values = quantise(point, vector).view(np.int32)
    assert set(values.tolist()) == {-1, 0}
    assert abs(values.mean() + 0.3) < 5 * math.sqrt(0.21 / 10_000)


def test_a_long_upload_is_clipped_with_all_that_rounding_adds():
    point = FixedPoint(clip_norm=1.0, scale=1000.0, size=400)
    for seed in range(20):
        vector = np.random.default_rng(seed).standard_normal(400).astype(np.float32)
        values = quantise(point, vector, seed).view(np.int32)
        length = np.linalg.norm(values.astype(float)) / 1000
        assert 0.95 < length <= 1.0


def test_the_result_may_take_the_place_of_the_upload_and_a_mask_is_added():
    point = FixedPoint(clip_norm=10.0, scale=1024.0, size=64)
    vector = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    plain = quantise(point, vector)
    point.quantise(vector, np.random.default_rng(0), vector.view(np.uint32), Mask(bytes(32)))
    assert (vector.view(np.uint32) - Mask(bytes(32)).next(64) == plain).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_an_upload_that_is_not_finite_is_refused(bad):
    point = FixedPoint(clip_norm=10.0, scale=1024.0, size=2)
    with pytest.raises(FloatingPointError, match="the upload is not finite"):
        quantise(point, np.array([1, bad], np.float32))


def test_a_sum_at_the_bound_does_not_overflow():
    members, clip_norm = 10, 3.0
    scale = largest_scale(clip_norm, members)
    point = FixedPoint(clip_norm, scale, 1)
    largest = quantise(point, np.array([1e15], np.float32)).view(np.int32)[0]
    assert 2**29 < 16 * members * int(largest) < 2**31


def test_a_norm_that_only_leaves_rounding_is_refused():
    with pytest.raises(ValueError, match=r"^secure_aggregation.clip_norm=1.0 must be above sqrt"):
        FixedPoint(clip_norm=1.0, scale=5.0, size=100)


# -- masks -----------------------------------------------------------------------------------------

# AES-256 of the counters 0, 1 and 2 with the key 0: AESAVS (KAT, GFSbox), and test cases 13 and 14
# of McGrew and Viega's specification of GCM.
ZERO_KEY = bytes.fromhex(
    "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738bcea7403d4d606b6e074ec5d3baf39d18"
)


def test_published_blocks():
    expected = [int.from_bytes(ZERO_KEY[i : i + 4], "little") for i in range(0, 48, 4)]
    assert Mask(bytes(32)).next(12).tolist() == expected
    mask = Mask(bytes(32))
    assert [*mask.next(5), *mask.next(7)] == expected


def test_a_sum_is_that_of_its_masks_modulo_2_to_the_32():
    seeds, weights, size = [bytes([i]) * 32 for i in range(3)], [1, 16, 5], BLOCK + 3
    whole = [np.concatenate([m.next(BLOCK), m.next(3)]) for m in map(Mask, seeds)]
    exact = sum(w * mask.astype(object) for w, mask in zip(weights, whole, strict=True))
    assert sum_of_masks(seeds, weights, size).tolist() == [int(v) % 2**32 for v in exact]


# -- weights ---------------------------------------------------------------------------------------


def leave_one_out(weights):
    """Whether the greatest common divisor without any single member is 1."""
    return all(math.gcd(*(weights[:i] + weights[i + 1 :])) == 1 for i in range(len(weights)))


def test_weights_are_rounded_to_sixteenths():
    """Ages 0 to 4, each twice: (1 + age)^-1/2 is 16, 11.3, 9.2, 8 and 7.2 sixteenths."""
    exact = Weighting("polynomial", exponent=0.5).weights([0, 1, 2, 3, 4] * 2, [1] * 10)
    assert integer_weights(exact) == [16, 11, 9, 8, 7] * 2
    assert rounding(exact, [16, 11, 9, 8, 7] * 2) < 0.05


def test_a_set_that_would_decode_is_changed_by_one():
    """Nine fresh updates and one old one: 16 would divide all weights but one."""
    weights = integer_weights([1.0] * 9 + [0.7])
    assert sorted(weights) == [11, 15, *[16] * 8]
    assert leave_one_out(weights)


def test_all_weights_hide_every_upload():
    rng = np.random.default_rng(0)
    for _ in range(300):
        exact = rng.integers(1, 6, rng.integers(2, 12)) ** rng.choice([-0.5, -1, 3])
        weights = integer_weights(exact)
        assert all(1 <= weight <= LARGEST for weight in weights)
        assert leave_one_out(weights)


def test_the_check_is_that_of_divisors_without_any_one_member():
    rng = np.random.default_rng(0)
    for _ in range(300):
        weights = rng.integers(1, LARGEST + 1, rng.integers(2, 6)).tolist()
        assert hides_all(weights, range(len(weights))) == leave_one_out(weights)


def test_two_uploads_of_one_device_are_one_member():
    assert hides_all([2, 2, 1, 1], "abcd")
    assert not hides_all([2, 2, 1, 1], "abcc")
