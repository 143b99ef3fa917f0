"""Discrete Gaussian noise, drawn exactly.

Canonne, Kamath, Steinke: "The Discrete Gaussian for Differential Privacy", NeurIPS 2020,
arXiv:2004.00010. An integer y has a probability proportional to exp(-y^2 / (2 sigma^2)).

The draws use integers alone, as in the paper's algorithms for Bernoulli(exp(-gamma)), the discrete
Laplace and the discrete Gaussian distribution, here for many entries at a time. sigma is an
integer, and so the Laplace distribution has the scale sigma: a candidate y is accepted with
probability exp(-(|y| - sigma)^2 / (2 sigma^2)).

The integers come from a key stream (`fl_app.secure.integers`). A request that is asked twice gets
the same noise: the mean of many draws would show the sum without noise.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fl_app.secure.integers import BLOCK, SEED_BYTES, Integers, Mask
from fl_app.secure.request import Request, Terms

KeyOfNoise = Callable[[Request, Sequence[bytes]], bytes]

LARGEST = 2**28  # deviation with which no product of integers here reaches 2^63
AT_A_TIME = BLOCK // 2  # entries; a draw takes 64 bits, and so two integers of the stream

Draws = NDArray[np.uint64]
Places = NDArray[np.intp]


class Uniform:
    """Uniform integers from a key stream, exactly.

    Args:
        key: 32 bytes, used for nothing else.
    """

    def __init__(self, key: bytes) -> None:
        self._stream = Mask(key)

    def below(self, bound: int, count: int) -> Draws:
        """Integers from 0 to ``bound - 1``, shape ``(count,)``.

        Args:
            bound: from 1 to 2^64 - 1.
            count: at most `AT_A_TIME`.
        """
        words = self._words(count)
        usable = 2**64 - 2**64 % bound  # a multiple of the bound: words beyond are drawn anew
        if usable < 2**64:
            words = words.copy()
            while (beyond := np.flatnonzero(words >= np.uint64(usable))).size:
                words[beyond] = self._words(beyond.size)
        return words % np.uint64(bound)

    def _words(self, count: int) -> Draws:
        return self._stream.next(2 * count).view(np.uint64)


def noise_key(request: Request, seeds: Sequence[bytes]) -> bytes:
    """The key of the noise of one request: unknown to whoever lacks one of its seeds.

    Args:
        request: as the server asked it.
        seeds: of its masks.
    """
    info = b"fl-app secure aggregation: noise" + request.digest()
    return HKDF(hashes.SHA256(), SEED_BYTES, None, info).derive(b"".join(seeds))


def deviation(terms: Terms, weights: Sequence[int], devices: Sequence[Hashable]) -> int:
    """sigma = ceil(z C s a), where a is the largest weight of one device; 0 without noise.

    Uploads are not longer than C s, so one device changes the sum by at most a C s.

    Args:
        terms: with z, C and s.
        weights: a_i of K uploads.
        devices: whose they are.
    """
    of_device: Counter[Hashable] = Counter()
    for weight, device in zip(weights, devices, strict=True):
        of_device[device] += weight
    largest = max(of_device.values())
    return math.ceil(terms.noise_multiplier * terms.clip_norm * terms.scale * largest)


def add_noise(total: Integers, key: bytes, sigma: int) -> None:
    """Add independent discrete Gaussian noise to every entry, modulo 2^32 and in place.

    Args:
        total: shape ``(d,)``.
        key: of the draws, 32 bytes.
        sigma: see `discrete_gaussian`.
    """
    uniform = Uniform(key)
    for start in range(0, total.size, AT_A_TIME):
        entries = total[start : start + AT_A_TIME]
        entries += discrete_gaussian(uniform, sigma, entries.size).astype(np.uint32)


def discrete_gaussian(uniform: Uniform, sigma: int, count: int) -> NDArray[np.int64]:
    """Independent draws, shape ``(count,)``.

    Args:
        uniform: where integers come from.
        sigma: from 1 to `LARGEST`; the standard deviation is at most sigma.
        count: at most `AT_A_TIME`.

    Raises:
        ValueError: sigma is out of its bounds.
    """
    if not 1 <= sigma <= LARGEST:
        raise ValueError(f"sigma={sigma} must be from 1 to {LARGEST}: other noise cannot be drawn")
    result = np.empty(count, np.int64)
    left = np.arange(count)
    while left.size:
        low, high, negative, places = _laplace(uniform, sigma, left.size)
        # |y| - sigma is low - sigma if high is 0, and else low + (high - 1) sigma, whose square is
        # taken apart: every part is a fraction of at most 1.
        more = np.maximum(high, 1) - 1
        rest = np.where(high == 0, np.uint64(sigma) - low, low)
        accepted = _happens(uniform, rest * rest, 2 * sigma * sigma)
        accepted &= _all_happen(uniform, low, sigma, more)
        accepted &= _all_happen(uniform, np.ones_like(low), 2, more * more)
        drawn = (high * np.uint64(sigma) + low).astype(np.int64)
        drawn[negative] *= -1
        filled = places[accepted]
        result[left[filled]] = drawn[accepted]
        left = np.delete(left, filled)
    return result


def _laplace(
    uniform: Uniform, sigma: int, count: int
) -> tuple[Draws, Draws, NDArray[np.bool_], Places]:
    """Candidates y = +-(low + sigma high) with probabilities proportional to exp(-|y| / sigma).

    Returns:
        low, high, whether y is negative, and the places of the attempts that succeeded.
    """
    low = uniform.below(sigma, count)
    places = np.flatnonzero(_happens(uniform, low, sigma))
    low = low[places]
    high = np.zeros(low.size, np.uint64)
    going: Places = np.arange(low.size)
    while (going := going[_happens(uniform, np.ones(going.size, np.uint64), 1)]).size:
        high[going] += np.uint64(1)
    negative = uniform.below(2, low.size) == 1
    once = ~(negative & (low == 0) & (high == 0))  # zero has one sign
    return low[once], high[once], negative[once], places[once]


def _happens(uniform: Uniform, numerators: Draws, denominator: int) -> NDArray[np.bool_]:
    """Bernoulli(exp(-n / m)) of every n <= m: the number of the first failure k is odd.

    Attempt k succeeds with probability n / (m k).
    """
    odd = np.ones(numerators.size, np.bool_)
    going: Places = np.arange(numerators.size)
    attempt = 1
    while going.size:
        success = uniform.below(denominator, going.size) < numerators[going]
        if attempt > 1:
            success &= uniform.below(attempt, going.size) == 0
        going = going[success]
        odd[going] ^= True
        attempt += 1
    return odd


def _all_happen(
    uniform: Uniform, numerators: Draws, denominator: int, times: Draws
) -> NDArray[np.bool_]:
    """Whether `times` draws of Bernoulli(exp(-n / m)) all succeed, for every n <= m."""
    kept = np.ones(times.size, np.bool_)
    going = np.flatnonzero(times)
    done = 0
    while going.size:
        success = _happens(uniform, numerators[going], denominator)
        kept[going[~success]] = False
        done += 1
        going = going[success]
        going = going[times[going] > done]
    return kept
