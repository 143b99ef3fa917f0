"""Discrete Gaussian noise: its distribution, its key, and its deviation."""

import hmac
import math
from dataclasses import replace

import numpy as np
import pytest
from secure_world import TERMS, masked, request, vectors

from fl_app.secure.noise import (
    AT_A_TIME,
    LARGEST,
    Uniform,
    add_noise,
    deviation,
    discrete_gaussian,
    noise_key,
)

DRAWS = [-225, 757, 139, -1137, 116, -42, 154, 903]


def chi_square(values: np.ndarray, probabilities: dict[int, float]) -> float:
    """Deviations above the mean of the test's statistic; a value that cannot occur is infinite."""
    expected = np.array(list(probabilities.values())) * values.size
    found = np.array([(values == value).sum() for value in probabilities])
    assert found.sum() == values.size
    free = len(expected) - 1
    return float((((found - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free))


@pytest.mark.parametrize("sigma", [1, 2, 3])
def test_draws_have_the_distribution_of_the_definition(sigma: int) -> None:
    """100,000 draws against exp(-y^2 / (2 sigma^2)); values beyond 4 sigma are taken together."""
    drawn = discrete_gaussian(Uniform(bytes([sigma]) * 32), sigma, 100_000)
    span = np.arange(-40 * sigma, 40 * sigma + 1)
    mass = np.exp(-(span**2) / (2.0 * sigma**2))
    inside = np.abs(span) <= 4 * sigma
    probabilities = dict(zip(span[inside].tolist(), (mass / mass.sum())[inside], strict=True))
    probabilities[99 * sigma] = float(mass[~inside].sum() / mass.sum())
    assert chi_square(np.where(np.abs(drawn) > 4 * sigma, 99 * sigma, drawn), probabilities) < 4


@pytest.mark.parametrize("sigma", [10_007, LARGEST])
def test_wide_noise_has_the_moments_of_a_gaussian(sigma: int) -> None:
    drawn = discrete_gaussian(Uniform(bytes(32)), sigma, AT_A_TIME) / sigma
    unit = 1 / math.sqrt(AT_A_TIME)
    assert abs(drawn.mean()) < 5 * unit
    assert abs((drawn**2).mean() - 1) < 5 * math.sqrt(2) * unit
    assert abs((drawn**4).mean() - 3) < 5 * math.sqrt(96) * unit
    assert np.unique(drawn % 1 * sigma % 16).size > 1  # low digits are drawn, too


def test_integers_below_a_bound_that_divides_nothing() -> None:
    """2^64 modulo 3 * 2^62 is 2^62: unless drawn anew, the lowest third comes twice as often."""
    bound = 3 * 2**62
    drawn = Uniform(bytes(32)).below(bound, 30_000)
    thirds = np.bincount((drawn // np.uint64(2**62)).astype(int))
    assert thirds.size == 3
    assert np.abs(thirds - 10_000).max() < 4.5 * math.sqrt(10_000 * 2 / 3)


def test_equal_keys_give_equal_noise_and_others_do_not() -> None:
    totals = [np.zeros(AT_A_TIME + 5, np.uint32) for _ in range(3)]
    for total, key in zip(totals, (b"a" * 32, b"a" * 32, b"b" * 32), strict=True):
        add_noise(total, key, 1000)
    assert (totals[0] == totals[1]).all()
    assert (totals[0] == totals[2]).mean() < 0.01
    # No part of a long vector repeats the noise of another one.
    assert not (totals[0][:5] == totals[0][AT_A_TIME:]).all()


def test_the_key_is_that_of_hkdf() -> None:
    """RFC 5869 with SHA-256, no salt and one block, written out."""
    asked = request([masked(vector, i) for i, vector in enumerate(vectors(3))])
    seeds = [bytes([i]) * 32 for i in range(3)]
    extracted = hmac.digest(bytes(32), b"".join(seeds), "sha256")
    info = b"fl-app secure aggregation: noise" + asked.digest()
    assert noise_key(asked, seeds) == hmac.digest(extracted, info + b"\x01", "sha256")


def test_draws_are_written_out() -> None:
    """A helper that was updated between two equal requests must not draw anew."""
    assert discrete_gaussian(Uniform(bytes(32)), 1000, 8).tolist() == DRAWS


def test_the_deviation_is_that_of_the_heaviest_device() -> None:
    """z C s a = 0.5 x 4 x 2^18 x a, where the device b has 3 + 4."""
    terms = replace(TERMS, noise_multiplier=0.5)
    assert deviation(terms, [5, 3, 4], "abb") == 7 * 2**19
    assert deviation(terms, [5, 3, 4], "abc") == 5 * 2**19
    assert deviation(replace(terms, scale=0.3), [1], "a") == 1  # rounded up
    assert deviation(TERMS, [5, 3, 4], "abc") == 0


@pytest.mark.parametrize("sigma", [0, -1, LARGEST + 1])
def test_noise_that_cannot_be_drawn_is_refused(sigma: int) -> None:
    with pytest.raises(ValueError, match=f"^sigma={sigma} must be from 1 to"):
        discrete_gaussian(Uniform(bytes(32)), sigma, 1)
