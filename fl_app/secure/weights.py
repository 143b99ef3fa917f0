"""Weights of a secure sum: integers from 1 to 16 that decode no single upload.

Weights can decode a sum. With weights 1, 2^10 and 2^20, small integers are read off digit by digit.
If a number g > 1 divides all weights but one, the sum modulo g shows that one's low digits. So
weights are integers of a small range. For every prime number below 16, the weights that it does not
divide must belong to at least two devices. That is the same as: the greatest common divisor of the
weights without those of any one device is 1.
"""

import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

LARGEST = 16
PRIMES = (2, 3, 5, 7, 11, 13)


def integer_weights(exact: ArrayLike) -> list[int]:
    """Integers from 1 to 16 that are nearly proportional to weights, and decode no upload.

    The weights are rounded to 16 steps of the largest one. If the integers would decode an upload,
    one of them is changed by 1. If that does not help, there are fewer steps. With one step all
    weights are 1.

    Args:
        exact: weights of K >= 2 updates of different devices, shape ``(K,)``, each > 0.

    Raises:
        ValueError: there are fewer than two weights, or one of them is not a number above 0.
    """
    weights = np.asarray(exact, np.float64)
    if weights.ndim != 1 or weights.size < 2 or not (np.isfinite(weights) & (weights > 0)).all():
        raise ValueError(f"a secure sum needs two or more weights above 0, got {weights.tolist()}")
    shares = weights / weights.max()
    for steps in range(LARGEST, 0, -1):
        rounded = [max(1, int(share)) for share in np.rint(steps * shares)]
        common = math.gcd(*rounded)
        for candidate in _near([weight // common for weight in rounded]):
            if hides_all(candidate, range(len(candidate))):
                return candidate
    raise AssertionError("weights of 1 decode nothing")


def _near(weights: list[int]) -> Iterator[list[int]]:
    """The weights themselves, then those that differ in one of them by 1."""
    yield weights
    for place, weight in enumerate(weights):
        for other in (weight - 1, weight + 1):
            if 1 <= other <= LARGEST:
                yield [*weights[:place], other, *weights[place + 1 :]]


def hides_all(weights: Sequence[int], devices: Sequence[Hashable]) -> bool:
    """Whether the sum modulo any number shows no single device's upload.

    Args:
        weights: integers, K of them.
        devices: whose uploads they belong to, K of them.
    """
    for prime in PRIMES:
        seen = {d for weight, d in zip(weights, devices, strict=True) if weight % prime}
        if len(seen) < 2:
            return False
    return True


def rounding(exact: ArrayLike, weights: Sequence[int]) -> float:
    """The largest relative change of an update's share by `integer_weights`."""
    wanted = np.asarray(exact, np.float64)
    wanted = wanted / wanted.sum()
    given = np.asarray(weights, np.float64)
    return float(np.max(np.abs(given / given.sum() / wanted - 1.0)))
