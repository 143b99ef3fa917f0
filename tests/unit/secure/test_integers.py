"""Rounding and clipping, the key stream, and weights that decode no upload."""

import hmac
import math
from dataclasses import replace

import numpy as np
import pytest
from secure_world import TERMS, masked, request, vectors

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
from fl_app.secure.noise import (
    AT_A_TIME,
    Uniform,
    add_noise,
    deviation,
    discrete_gaussian,
    noise_key,
)


class Zeros(Mask):
    """A mask that hides nothing."""

    def next(self, count):
        return np.zeros(count, np.uint32)


def quantised(point, vector, seed=0):
    out = np.empty(point.size, np.uint32)
    point.quantise(vector, np.random.default_rng(seed), out, Zeros(bytes(32)))
    return out


def test_a_short_upload_changes_by_less_than_one_step():
    point = FixedPoint(clip_norm=10.0, scale=1024.0, size=100)
    vector = np.random.default_rng(1).standard_normal(100).astype(np.float32) / 2
    error = point.mean(quantised(point, vector), 1.0) - vector
    assert 0 < np.abs(error).max() < 1 / 1024


def test_rounding_has_no_bias():
    point = FixedPoint(clip_norm=200.0, scale=1.0, size=10_000)
    vector = np.full(10_000, -0.3, np.float32)
    values = quantised(point, vector).view(np.int32)
    assert set(values.tolist()) == {-1, 0}
    assert abs(values.mean() + 0.3) < 5 * math.sqrt(0.21 / 10_000)


def test_a_long_upload_is_clipped_with_all_that_rounding_adds():
    point = FixedPoint(clip_norm=1.0, scale=1000.0, size=400)
    for seed in range(20):
        vector = np.random.default_rng(seed).standard_normal(400).astype(np.float32)
        values = quantised(point, vector, seed).view(np.int32)
        length = np.linalg.norm(values.astype(float)) / 1000
        assert 0.95 < length <= 1.0


def test_the_result_may_take_the_place_of_the_upload_and_a_mask_is_added():
    point = FixedPoint(clip_norm=10.0, scale=1024.0, size=64)
    vector = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    plain = quantised(point, vector)
    point.quantise(vector, np.random.default_rng(0), vector.view(np.uint32), Mask(bytes(32)))
    assert (vector.view(np.uint32) - Mask(bytes(32)).next(64) == plain).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_an_upload_that_is_not_finite_is_refused(bad):
    point = FixedPoint(clip_norm=10.0, scale=1024.0, size=2)
    with pytest.raises(FloatingPointError, match="the upload is not finite"):
        quantised(point, np.array([1, bad], np.float32))


def test_a_sum_at_the_bound_does_not_overflow():
    members, clip_norm = 10, 3.0
    scale = largest_scale(clip_norm, members)
    point = FixedPoint(clip_norm, scale, 1)
    largest = quantised(point, np.array([1e15], np.float32)).view(np.int32)[0]
    assert 2**29 < 16 * members * int(largest) < 2**31


def test_a_norm_that_only_leaves_rounding_is_refused():
    with pytest.raises(ValueError, match=r"^secure_aggregation.clip_norm=1.0 must be above sqrt"):
        FixedPoint(clip_norm=1.0, scale=5.0, size=100)


def test_noise_takes_its_part_of_the_range():
    """16 (10 + 12 x 5) C s < 2^31: a seventh of the scale without noise, and so an eighth."""
    assert largest_scale(3.0, 10, 5.0) == largest_scale(3.0, 10) / 8


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
    """Whether the greatest common divisor without any one member is 1."""
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


# -- discrete Gaussian noise: its distribution, its key, and its deviation -------------------------

DRAWS = [-225, 757, 139, -1137, 116, -42, 154, 903]


def chi_square(values, probabilities):
    """Deviations above the mean of the test's statistic; a value that cannot occur is infinite."""
    expected = np.array(list(probabilities.values())) * values.size
    found = np.array([(values == value).sum() for value in probabilities])
    assert found.sum() == values.size
    free = len(expected) - 1
    return float((((found - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free))


@pytest.mark.parametrize("sigma", [1, 2, 3])
def test_draws_have_the_distribution_of_the_definition(sigma):
    """100,000 draws against exp(-y^2 / (2 sigma^2)); values beyond 4 sigma are taken together."""
    drawn = discrete_gaussian(Uniform(bytes([sigma]) * 32), sigma, 100_000)
    span = np.arange(-40 * sigma, 40 * sigma + 1)
    mass = np.exp(-(span**2) / (2.0 * sigma**2))
    inside = np.abs(span) <= 4 * sigma
    probabilities = dict(zip(span[inside].tolist(), (mass / mass.sum())[inside], strict=True))
    probabilities[99 * sigma] = float(mass[~inside].sum() / mass.sum())
    assert chi_square(np.where(np.abs(drawn) > 4 * sigma, 99 * sigma, drawn), probabilities) < 4


def test_integers_below_a_bound_that_divides_nothing():
    """2^64 modulo 3 * 2^62 is 2^62: unless drawn anew, the lowest third comes twice as often."""
    bound = 3 * 2**62
    drawn = Uniform(bytes(32)).below(bound, 30_000)
    thirds = np.bincount((drawn // np.uint64(2**62)).astype(int))
    assert thirds.size == 3
    assert np.abs(thirds - 10_000).max() < 4.5 * math.sqrt(10_000 * 2 / 3)


def test_equal_keys_give_equal_noise_and_others_do_not():
    totals = [np.zeros(AT_A_TIME + 5, np.uint32) for _ in range(3)]
    for total, key in zip(totals, (b"a" * 32, b"a" * 32, b"b" * 32), strict=True):
        add_noise(total, key, 1000)
    assert (totals[0] == totals[1]).all()
    assert (totals[0] == totals[2]).mean() < 0.01
    # No part of a long vector repeats the noise of another one.
    assert not (totals[0][:5] == totals[0][AT_A_TIME:]).all()


def test_the_key_is_that_of_hkdf():
    """RFC 5869 with SHA-256, no salt and one block, written out."""
    asked = request([masked(vector, i) for i, vector in enumerate(vectors(3))])
    seeds = [bytes([i]) * 32 for i in range(3)]
    extracted = hmac.digest(bytes(32), b"".join(seeds), "sha256")
    info = b"fl-app secure aggregation: noise" + asked.digest()
    assert noise_key(asked, seeds) == hmac.digest(extracted, info + b"\x01", "sha256")


def test_draws_are_written_out():
    """A helper that was updated between two equal requests must not draw anew."""
    assert discrete_gaussian(Uniform(bytes(32)), 1000, 8).tolist() == DRAWS


def test_the_deviation_is_that_of_the_heaviest_device():
    """z C s a = 0.5 x 4 x 2^18 x a, where the device b has 3 + 4."""
    terms = replace(TERMS, noise_multiplier=0.5)
    assert deviation(terms, [5, 3, 4], "abb") == 7 * 2**19
    assert deviation(terms, [5, 3, 4], "abc") == 5 * 2**19
    assert deviation(replace(terms, scale=0.3), [1], "a") == 1  # rounded up
    assert deviation(TERMS, [5, 3, 4], "abc") == 0
