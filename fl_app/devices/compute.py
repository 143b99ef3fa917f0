"""How many seconds the training of an order takes on each client.

A duration is a function of (seed, client, sequence number). So every algorithm meets the same
devices, and there is no state to save.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require, require_at_least, require_positive
from fl_app.core.slow import slow_clients
from fl_app.devices.draws import STREAM, around, exponential, uniform


class MeanSeconds:
    """Every client has a mean duration, and its orders deviate from it.

    An order of client i takes ``e_i * U(1 - jitter, 1 + jitter)``.

    Args:
        mean_seconds: e_i, shape ``(N,)``, all > 0.
        seed: seed of the run.
        jitter: relative half-width of an order's deviation, in [0, 1).

    Attributes:
        mean_seconds: e_i of every client.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(self, mean_seconds: NDArray[Any], *, seed: int, jitter: float) -> None:
        require_at_least("devices.jitter", jitter, 0, "an order's time could not be drawn")
        require(
            jitter < 1, "devices.jitter", jitter, "below 1", "an order could end before it began"
        )
        self.mean_seconds: list[float] = mean_seconds.tolist()
        self._seed = seed
        self._jitter = jitter

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        """Virtual seconds of the client's order with sequence number `sequence` given at `now`."""
        draw = uniform(self._seed, client_id, sequence)
        return self.mean_seconds[client_id] * around(self._jitter, draw)


class UniformRatio(MeanSeconds):
    """Mean durations are uniform between those of the fastest and the slowest client.

    ``e_i = base_seconds * U(1, ratio)``. One client has exactly ``base_seconds``, and one exactly
    ``base_seconds * ratio``.

    Args:
        ratio: mean duration of the slowest client over that of the fastest, >= 1.
        num_clients: N >= 1; a single client is the fastest.
        seed: seed of the run.
        jitter: see `MeanSeconds`.
        base_seconds: mean duration on the fastest client, > 0.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(
        self,
        *,
        ratio: float,
        num_clients: int,
        seed: int = 0,
        jitter: float = 0.2,
        base_seconds: float = 1.0,
    ) -> None:
        require_at_least("devices.ratio", ratio, 1, "the slowest client would be the fastest")
        _check(num_clients, base_seconds)
        rng = np.random.default_rng((seed, STREAM))
        means = rng.uniform(1.0, ratio, num_clients)
        slowest, fastest = rng.permutation(num_clients)[[0, -1]]
        means[slowest], means[fastest] = ratio, 1.0
        super().__init__(base_seconds * means, seed=seed, jitter=jitter)


class TwoSpeed(MeanSeconds):
    """Some clients are slow; all others are equally fast.

    Args:
        num_clients: N >= 1.
        slow_share: share of slow clients, in (0, 1]; `fl_app.core.slow.slow_clients` names them.
        slow: ids of the slow clients, instead of `slow_share`.
        slowdown: mean duration on a slow client over that on a fast one, >= 1; 2 = half speed.
        seed: seed of the run.
        jitter: see `MeanSeconds`.
        base_seconds: mean duration on a fast client, > 0.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        slow_share: float = 0.1,
        slow: Sequence[int] | None = None,
        slowdown: float = 2.0,
        seed: int = 0,
        jitter: float = 0.2,
        base_seconds: float = 1.0,
    ) -> None:
        require_at_least("devices.slowdown", slowdown, 1, "slow clients would be the fast ones")
        _check(num_clients, base_seconds)
        ids = list(slow_clients(num_clients, slow_share) if slow is None else slow)
        for client_id in ids:
            require(
                client_id in range(num_clients),
                "devices.slow",
                client_id,
                f"a client id in [0, num_clients={num_clients})",
                "there is no such client to slow down",
            )
        means = np.full(num_clients, base_seconds)
        means[ids] *= slowdown
        super().__init__(means, seed=seed, jitter=jitter)


class LogNormal(MeanSeconds):
    """Mean durations are log-normal: ``e_i = base_seconds * exp(sigma * N(0, 1))``.

    Args:
        num_clients: N >= 1.
        sigma: standard deviation of log(e_i), >= 0; with 0.5 one client in six takes more than 1.65
            times as long as the median client.
        seed: seed of the run.
        jitter: see `MeanSeconds`.
        base_seconds: mean duration on the median client, > 0.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        sigma: float = 0.5,
        seed: int = 0,
        jitter: float = 0.2,
        base_seconds: float = 1.0,
    ) -> None:
        require_at_least("devices.sigma", sigma, 0, "a spread cannot be negative")
        _check(num_clients, base_seconds)
        normal = np.random.default_rng((seed, STREAM)).standard_normal(num_clients)
        super().__init__(base_seconds * np.exp(sigma * normal), seed=seed, jitter=jitter)


class Exponential:
    """All clients are equal, and their orders take exponential times.

    An order of any client takes ``base_seconds * (fixed + (1 - fixed) * Exp(1))``.

    Args:
        num_clients: N >= 1.
        fixed: least duration of an order as a share of the mean, in [0, 1).
        seed: seed of the run.
        base_seconds: mean duration, > 0.

    Attributes:
        mean_seconds: mean duration of every client.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(
        self, *, num_clients: int, fixed: float = 0.0, seed: int = 0, base_seconds: float = 1.0
    ) -> None:
        require_at_least("devices.fixed", fixed, 0, "an order could end before it began")
        require(fixed < 1, "devices.fixed", fixed, "below 1", "nothing would be left to chance")
        _check(num_clients, base_seconds)
        self.mean_seconds = [base_seconds] * num_clients
        self._seed = seed
        self._least = base_seconds * fixed
        self._scale = base_seconds * (1.0 - fixed)

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        """Virtual seconds of the client's order with sequence number `sequence` given at `now`."""
        return self._least + self._scale * exponential(uniform(self._seed, client_id, sequence))


def _check(num_clients: int, base_seconds: float) -> None:
    require_at_least("num_clients", num_clients, 1, "there would be no client to train")
    require_positive("devices.base_seconds", base_seconds, "time would stand still")
