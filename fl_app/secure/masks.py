"""Masks: the key stream of AES-256 in counter mode, as integers modulo 2^32.

PRG(seed) is the encryption of zeros with the seed as key and a counter that starts at 0. A seed is
used for one upload, so the counter needs no nonce. Four bytes are one integer, least byte first.
"""

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

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


def blocks(size: int) -> list[slice]:
    """Places of a vector ``(size,)``, `BLOCK` entries at a time."""
    return [slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]


def sum_of_masks(seeds: Sequence[bytes], weights: Sequence[int], size: int) -> Integers:
    """sum_i a_i PRG(seed_i) modulo 2^32, shape ``(size,)``.

    Args:
        seeds: of K masks.
        weights: a_i >= 0, K of them.
        size: number of entries.
    """
    total = np.zeros(size, np.uint32)
    masks = [Mask(seed) for seed in seeds]
    for place in blocks(size):
        for mask, weight in zip(masks, weights, strict=True):
            total[place] += mask.next(place.stop - place.start) * np.uint32(weight)
    return total
