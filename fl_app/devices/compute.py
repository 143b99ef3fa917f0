"""Training times of orders on each client, in seconds.

A duration is a function of (seed, client, sequence number). So every algorithm meets the same
devices, and there is no state to save.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl_app.core.hyper import BELOW_1, COUNT, NON_NEGATIVE, POSITIVE, Checked, at_least, bounded
from fl_app.core.slow import slow_clients
from fl_app.devices.draws import STREAM, around, exponential, log_normal, uniform
from fl_app.devices.table import boards_of, rows_of, table_4


@dataclass(kw_only=True, eq=False)
class Times(Checked, ABC):
    """Training times of all clients.

    Args:
        seed: seed of the run.

    Attributes:
        mean_seconds: mean duration of every client.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "devices"

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.mean_seconds: list[float] = np.asarray(self._means(), float).tolist()

    @abstractmethod
    def _means(self) -> Any:
        """e_i of every client, all > 0, as NumPy takes them."""

    @abstractmethod
    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        """Virtual seconds of the client's order with sequence number `sequence` given at `now`."""

    def start_up(self, client_id: int, sequence: int) -> float:
        """Seconds of that order before its training, as for the start of an app."""
        return 0.0


@dataclass(kw_only=True, eq=False)
class MeanSeconds(Times):
    """Every client has a mean duration, and its orders deviate from it.

    An order of client i takes ``e_i * U(1 - jitter, 1 + jitter)``.

    Args:
        jitter: relative half-width of an order's deviation, in [0, 1).
    """

    jitter: float = bounded(0.2, BELOW_1, "an order could end before it began")

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        draw = uniform(self.seed, client_id, sequence)
        return self.mean_seconds[client_id] * around(self.jitter, draw)


@dataclass(kw_only=True, eq=False)
class _Scaled(Times):
    """Durations are in proportion to those of a client that takes `base_seconds`.

    Args:
        num_clients: N >= 1.
        base_seconds: seconds, > 0.
    """

    num_clients: int
    base_seconds: float = bounded(1.0, POSITIVE, "time would stand still")


@dataclass(kw_only=True, eq=False)
class UniformRatio(MeanSeconds, _Scaled):
    """Mean durations are uniform between those of the fastest and the slowest client.

    ``e_i = base_seconds * U(1, ratio)``. One client has exactly ``base_seconds``, and one exactly
    ``base_seconds * ratio``.

    Args:
        ratio: mean duration of the slowest client over that of the fastest, >= 1.
        num_clients: N >= 1; a single client is the fastest.
        base_seconds: mean duration on the fastest client, > 0.
    """

    ratio: float = bounded(1.0, at_least(1), "the slowest client would be the fastest")

    def _means(self) -> Any:
        rng = np.random.default_rng((self.seed, STREAM))
        means = rng.uniform(1.0, self.ratio, self.num_clients)
        slowest, fastest = rng.permutation(self.num_clients)[[0, -1]]
        means[slowest], means[fastest] = self.ratio, 1.0
        return self.base_seconds * means


@dataclass(kw_only=True, eq=False)
class TwoSpeed(MeanSeconds, _Scaled):
    """Some clients are slow; all others are equally fast.

    Args:
        num_clients: N >= 1.
        slow_share: share of slow clients, in (0, 1]; `fl_app.core.slow.slow_clients` names them.
        slowdown: mean duration on a slow client over that on a fast one, >= 1; 2 = half speed.
        base_seconds: mean duration on a fast client, > 0.
    """

    slow_share: float = 0.1
    slowdown: float = bounded(2.0, at_least(1), "slow clients would be the fast ones")

    def _means(self) -> Any:
        means = np.full(self.num_clients, self.base_seconds)
        means[list(slow_clients(self.num_clients, self.slow_share))] *= self.slowdown
        return means


@dataclass(kw_only=True, eq=False)
class LogNormal(MeanSeconds, _Scaled):
    """Mean durations are log-normal: ``e_i = base_seconds * exp(sigma * N(0, 1))``.

    Args:
        num_clients: N >= 1.
        sigma: standard deviation of log(e_i), >= 0.
        base_seconds: mean duration on the median client, > 0.
    """

    sigma: float = bounded(0.5, NON_NEGATIVE, "a spread cannot be negative")

    def _means(self) -> Any:
        normal = np.random.default_rng((self.seed, STREAM)).standard_normal(self.num_clients)
        return self.base_seconds * np.exp(self.sigma * normal)


@dataclass(kw_only=True, eq=False)
class MeasuredPhones(MeanSeconds, _Scaled):
    """Every client is one of 114 phone types, drawn by how often the type was seen in the field.

    ``tables/README.md`` names the source.

    Args:
        num_clients: N >= 1.
        base_seconds: mean duration on the median phone, > 0.
    """

    def _means(self) -> Any:
        phones = rows_of("phones.json")
        counts = np.array([phone["count"] for phone in phones])
        relative = np.array([phone["relative_seconds"] for phone in phones])
        rng = np.random.default_rng((self.seed, STREAM))
        types = rng.choice(len(phones), self.num_clients, p=counts / counts.sum())
        return self.base_seconds * relative[types]


@dataclass(kw_only=True, eq=False)
class OverlapCompute(MeanSeconds):
    """Training time is proportional to a client's data; the largest client takes Table 4's time.

    The table is that of Overlap-FedAvg (`fl_app.devices.table.TABLE_4`).

    Args:
        num_bytes: size of a model, 4 bytes per parameter.
        num_examples: n_i of every client, all > 0.
        epochs: local epochs of an order, >= 1; Table 4 has five.
    """

    num_bytes: int
    num_examples: Sequence[int]
    jitter: float = bounded(0.0, BELOW_1, "an order could end before it began")
    epochs: int = bounded(5, COUNT, "training would take no time")

    def _means(self) -> Any:
        seconds = table_4(self.num_bytes)[0] * (self.epochs / 5)
        sizes = np.asarray(self.num_examples, float)
        return seconds * sizes / sizes.max()


class Exponential(_Scaled):
    """All clients are equal, and their orders take exponential times.

    An order of any client takes ``base_seconds * Exp(1)``.

    Args:
        num_clients: N >= 1.
        base_seconds: mean duration, > 0.
    """

    def _means(self) -> Any:
        return [self.base_seconds] * self.num_clients

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        return self.base_seconds * exponential(uniform(self.seed, client_id, sequence))


@dataclass(kw_only=True, eq=False)
class Boards(Times):
    """Every client is a board of a named kind; the first clients are the first kind's.

    An order of client i takes ``m_i X``, and a client's first order ``first`` seconds more. X is
    log-normal with mean 1 and the standard deviation ``spread``. ``m_i`` is the board's mean, times
    the client's number of examples over that of the kind.

    Args:
        num_clients: N.
        num_examples: n_i of every client, all > 0.
        table: a device file, or its name in ``fl_app/devices/tables`` (`fl_app.devices.table`).
        boards: kind -> how many; None = as in the table.

    Attributes:
        kinds: name of each client's kind.

    Raises:
        ValueError: there is no such table or kind, or not N boards.
    """

    num_clients: int
    num_examples: Sequence[int]
    table: str
    boards: Mapping[str, int] | None = None

    def _means(self) -> Any:
        self.kinds, self._specs = boards_of(self.table, self.boards, self.num_clients)
        number: Counter[str] = Counter()  # of a kind's next board
        means = []
        for name, kind, examples in zip(self.kinds, self._specs, self.num_examples, strict=True):
            share = 1.0 if kind.examples is None else examples / kind.examples
            means.append(kind.seconds[number[name] % len(kind.seconds)] * share)
            number[name] += 1
        return means

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        kind = self._specs[client_id]
        sigma = math.sqrt(math.log1p(kind.spread**2))
        factor = log_normal(sigma, uniform(self.seed, client_id, sequence))
        return self.mean_seconds[client_id] * factor

    def start_up(self, client_id: int, sequence: int) -> float:
        return 0.0 if sequence else self._specs[client_id].first
