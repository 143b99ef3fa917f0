"""Integers modulo 2^32: uploads, the masks that are added to them, and the weights of a sum.

**Uploads.**

    q_i = floor(s x_i + u) mod 2^32,    u uniform in [0, 1) for every entry,
    x_i = v_i min(1, (C - sqrt(d) / s) / ||v_i||)

of an upload v_i with d entries. Rounding is random, so that the mean of many uploads has no bias.
An entry changes by less than 1 / s, and so does every entry of a weighted mean. C is reduced by
the most that rounding can add, so ||q_i|| <= s C always holds. This bounds the sums, and the
influence of one client on them.

A sum of at most K uploads with weights of at most 16 does not overflow if 16 K C s < 2^31.

**Masks** are the key stream of AES-256 in counter mode. PRG(seed) is the encryption of zeros with
the seed as key and a counter that starts at 0. A seed is used for one upload, so the counter needs
no nonce. Four bytes are one little-endian integer.

**Weights** can decode a sum. With weights 1, 2^10 and 2^20, small integers are read off digit by
digit. If a number g > 1 divides all weights but one, the sum modulo g shows that one's low digits.
So weights are integers from 1 to 16. For every prime number below 16, the weights that it does not
divide must belong to at least two devices. Equivalently, the greatest common divisor of the weights
without those of any one device is 1.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import ArrayLike, NDArray

from fl_app.core.errors import require
from fl_app.core.types import Rng, Vector
from fl_app.core.vector import blocks, norm

LIMIT = 2.0**31
LARGEST = 16  # weight
PRIMES = (2, 3, 5, 7, 11, 13)
SEED_BYTES = 32
BLOCK = 1 << 18  # entries that are masked at a time, 1 MiB

Integers = NDArray[np.uint32]

_ZEROS = bytes(4 * BLOCK)


class Mask:
    """The integers of PRG(seed), in order.

    Args:
        seed: 32 bytes.

    Raises:
        ValueError: the seed has another length.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes, got {len(seed)}")
        self._cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()

    def next(self, count: int) -> Integers:
        """The next `count` integers, at most `BLOCK`; shape ``(count,)``."""
        stream = self._cipher.update(memoryview(_ZEROS)[: 4 * count])
        return np.frombuffer(stream, "<u4").astype(np.uint32, copy=False)


def sum_of_masks(seeds: Sequence[bytes], weights: Sequence[int], size: int) -> Integers:
    """sum_i a_i PRG(seed_i) modulo 2^32, shape ``(size,)``.

    Args:
        seeds: of K masks.
        weights: a_i >= 0, K of them.
        size: number of entries.
    """
    total = np.zeros(size, np.uint32)
    masks = [Mask(seed) for seed in seeds]
    for place in blocks(size, BLOCK):
        for mask, weight in zip(masks, weights, strict=True):
            total[place] += mask.next(place.stop - place.start) * np.uint32(weight)
    return total


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Converts uploads to integers and back.

    Args:
        clip_norm: C > 0.
        scale: s > 0, integers per unit.
        size: d, entries of an upload.

    Raises:
        ValueError: rounding could lengthen an upload by C or more.
    """

    clip_norm: float
    scale: float
    size: int

    def __post_init__(self) -> None:
        require(
            self._longest > 0,
            "secure_aggregation.clip_norm",
            self.clip_norm,
            f"above sqrt(d)/s={math.sqrt(self.size) / self.scale:g} with d={self.size} parameters "
            f"and s={self.scale:g} integers per unit",
            "rounding would change uploads more than training does",
        )

    @property
    def _longest(self) -> float:
        return self.clip_norm - math.sqrt(self.size) / self.scale

    def quantise(self, vector: Vector, rng: Rng, out: Integers, mask: Mask) -> None:
        """Clip, round and mask an upload.

        Args:
            vector: v, shape ``(d,)``, finite.
            rng: of the rounding.
            out: for the result, shape ``(d,)``; it may be the memory of `vector`.
            mask: added to the integers.

        Raises:
            FloatingPointError: the length of the upload is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            length = norm(vector)
        if not math.isfinite(length):
            raise FloatingPointError("the upload is not finite: training has diverged")
        factor = self.scale * min(1.0, self._longest / length if length else 1.0)
        for place in blocks(vector.size, BLOCK):
            exact = vector[place].astype(np.float64)
            exact *= factor
            exact += rng.random(exact.size)
            values = np.floor(exact).astype(np.int64).astype(np.uint32)  # modulo 2^32
            out[place] = values + mask.next(values.size)

    def mean(self, total: Integers, divisor: float) -> Vector:
        """The vector ``(d,)`` that a sum of integers stands for, divided by `divisor`."""
        exact = total.view(np.int32) / (self.scale * divisor)
        return exact.astype(np.float32)


def largest_scale(clip_norm: float, members: int) -> float:
    """The largest power of two s with which sums cannot overflow.

    Args:
        clip_norm: C > 0.
        members: K >= 1.
    """
    limit = (LIMIT - 1) / (LARGEST * clip_norm * members)
    return 2.0 ** math.floor(math.log2(limit))


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
        devices: the device of each upload, K of them.
    """
    pairs = [*zip(weights, devices, strict=True)]
    return all(len({d for weight, d in pairs if weight % prime}) > 1 for prime in PRIMES)


def rounding(exact: ArrayLike, weights: Sequence[int]) -> float:
    """The largest relative change of an update's share by `integer_weights`."""
    expected = np.asarray(exact, np.float64)
    expected = expected / expected.sum()
    actual = np.asarray(weights, np.float64)
    return float(np.max(np.abs(actual / actual.sum() / expected - 1.0)))
