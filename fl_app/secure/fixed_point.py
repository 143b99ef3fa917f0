"""Uploads as integers modulo 2^32.

    q_i = floor(s x_i + u) mod 2^32,    u uniform in [0, 1) for every entry,
    x_i = v_i min(1, (C - sqrt(d) / s) / ||v_i||)

of an upload v_i with d entries. Rounding is random, so that the mean of many uploads has no bias.
An entry changes by less than 1 / s, and so does every entry of a weighted mean. C is reduced by
what rounding can add, so ||q_i|| <= s C always holds. That bounds sums, and what one
client can change of them.

A sum of at most K uploads with weights of at most 16, and of noise with the multiplier z, does not
overflow if 16 (K + 12 z) C s < 2^31: `fl_app.secure.noise`.
"""

import math
from dataclasses import dataclass

import numpy as np

from fl_app.core.errors import require
from fl_app.core.types import Vector
from fl_app.core.vector import norm
from fl_app.secure.masks import Integers, Mask, blocks
from fl_app.secure.noise import TAIL
from fl_app.secure.weights import LARGEST

LIMIT = 2.0**31


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
            "secure_aggregation.scale",
            f"{self.scale:g}",
            f"above sqrt(d)/C={math.sqrt(self.size) / self.clip_norm:g} with "
            f"secure_aggregation.clip_norm={self.clip_norm:g} and d={self.size} parameters",
            "rounding would change uploads more than training does",
        )

    @property
    def _longest(self) -> float:
        return self.clip_norm - math.sqrt(self.size) / self.scale

    def quantise(self, vector: Vector, rng: np.random.Generator, out: Integers, mask: Mask) -> None:
        """Clip, round and mask an upload.

        Args:
            vector: v, shape ``(d,)``, finite.
            rng: of the rounding.
            out: for the result, shape ``(d,)``; it may be the memory of `vector`.
            mask: added.

        Raises:
            FloatingPointError: the length of the upload is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            length = norm(vector)
        if not math.isfinite(length):
            raise FloatingPointError("the upload is not finite: training has diverged")
        factor = self.scale * min(1.0, self._longest / length if length else 1.0)
        for place in blocks(vector.size):
            exact = vector[place].astype(np.float64)
            exact *= factor
            exact += rng.random(exact.size)
            values = np.floor(exact).astype(np.int64).astype(np.uint32)  # modulo 2^32
            out[place] = values + mask.next(values.size)

    def mean(self, total: Integers, divisor: float) -> Vector:
        """The vector ``(d,)`` that a sum of integers stands for, divided by `divisor`."""
        exact = total.view(np.int32) / (self.scale * divisor)
        vector: Vector = exact.astype(np.float32)
        return vector


def largest_scale(clip_norm: float, members: int, noise_multiplier: float = 0.0) -> float:
    """The largest power of two s with which sums cannot overflow.

    Args:
        clip_norm: C > 0.
        members: K >= 1.
        noise_multiplier: z >= 0.
    """
    most = (LIMIT - 1) / (LARGEST * clip_norm * (members + TAIL * noise_multiplier))
    return 2.0 ** math.floor(math.log2(most))
