"""The key stream against published blocks of AES-256, and sums of masks."""

import numpy as np
import pytest

from fl_app.secure.masks import BLOCK, Mask, sum_of_masks

# AES-256 of the counters 0, 1 and 2 with the key 0: AESAVS (KAT, GFSbox), and test cases 13 and 14
# of McGrew and Viega's specification of GCM.
ZERO_KEY = bytes.fromhex(
    "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738bcea7403d4d606b6e074ec5d3baf39d18"
)


def test_published_blocks() -> None:
    expected = [int.from_bytes(ZERO_KEY[i : i + 4], "little") for i in range(0, 48, 4)]
    assert Mask(bytes(32)).next(12).tolist() == expected
    mask = Mask(bytes(32))
    assert [*mask.next(5), *mask.next(7)] == expected


def test_a_sum_is_that_of_its_masks_modulo_2_to_the_32() -> None:
    seeds, weights, size = [bytes([i]) * 32 for i in range(3)], [1, 16, 5], BLOCK + 3
    whole = [np.concatenate([m.next(BLOCK), m.next(3)]) for m in map(Mask, seeds)]
    exact = sum(w * mask.astype(object) for w, mask in zip(weights, whole, strict=True))
    assert sum_of_masks(seeds, weights, size).tolist() == [int(v) % 2**32 for v in exact]


def test_a_seed_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a seed has 32 bytes, got 16"):
        Mask(bytes(16))
