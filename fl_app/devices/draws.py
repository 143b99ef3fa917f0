"""Random numbers as a function of (seed, client, number), without state.

A hash takes 2 microseconds; the construction of a NumPy generator takes 25.
"""

import math
import struct
from hashlib import blake2b
from statistics import NormalDist

STREAM = 0x6465_7669_6365_735F  # keeps the devices' random numbers apart from all others

_pack = struct.Struct("<qqq").pack


def uniform(seed: int, client_id: int, number: int, what: bytes = b"devices") -> float:
    """A uniform number in [0, 1), a function of the arguments alone.

    Args:
        seed: seed of the run.
        client_id: the client.
        number: number of its order, its stay or its day.
        what: name of the quantity, at most 16 bytes; each quantity has its own numbers.
    """
    digest = blake2b(_pack(seed, client_id, number), digest_size=8, person=what).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def around(jitter: float, draw: float) -> float:
    """A factor uniform in [1 - jitter, 1 + jitter), from a `draw` in [0, 1)."""
    return 1.0 + jitter * (2.0 * draw - 1.0)


def exponential(draw: float) -> float:
    """An exponential number of mean 1, from a `draw` in [0, 1)."""
    return -math.log1p(-draw)


def log_normal(sigma: float, draw: float) -> float:
    """A log-normal number of mean 1, from a `draw` in [0, 1).

    Args:
        sigma: standard deviation of its logarithm, >= 0.
        draw: uniform.
    """
    return math.exp(sigma * (_quantile(NormalDist(), draw) - sigma / 2))


def normal_above(mean: float, sigma: float, lowest: float, draw: float) -> float:
    """A normal number truncated below `lowest`, from a `draw` in [0, 1).

    Args:
        mean: mean of the whole normal distribution.
        sigma: its standard deviation, > 0.
        lowest: lower bound.
        draw: uniform.
    """
    normal = NormalDist(mean, sigma)
    below = normal.cdf(lowest)
    return max(lowest, _quantile(normal, below + draw * (1.0 - below)))


def _quantile(normal: NormalDist, place: float) -> float:
    # `inv_cdf` refuses 0 and 1, which rounding could reach.
    return normal.inv_cdf(min(max(place, 2.0**-53), 1.0 - 2.0**-53))
