"""Times of downloads and uploads of a model, in seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

import numpy as np

from fl_app.core.hyper import BELOW_1, NON_NEGATIVE, POSITIVE, Checked, bounded
from fl_app.devices.draws import STREAM, around, log_normal, normal_above, uniform
from fl_app.devices.table import boards_of, rows_of, table_4

Way: TypeAlias = Literal["down", "up"]
SHARE = 0.01  # of the mean training time that a transfer takes
MIN_SPEED = 0.1  # share of a link's mean: some deviations are as large as the mean


@dataclass(kw_only=True, eq=False)
class Links(Checked):
    """The links of all clients.

    Args:
        download_share: size of an order over that of a model.
        upload_share: size of an upload over that of a model.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "devices.network"

    download_share: float = 1.0
    upload_share: float = 1.0

    _mean = 0.0  # seconds of a transfer of a whole model

    def download(self, client_id: int, sequence: int, part: float = 1.0) -> float:
        """Seconds until the client has `part` of the model of its order number `sequence`."""
        return self._seconds("down", client_id, sequence, self.download_share * part)

    def upload(self, client_id: int, sequence: int, part: float = 1.0) -> float:
        """Seconds from the end of training until the server has that `part` of the update."""
        return self._seconds("up", client_id, sequence, self.upload_share * part)

    def _seconds(self, way: Way, client_id: int, sequence: int, share: float) -> float:
        """Seconds of a transfer of `share` of a model; by default in proportion to the share."""
        return self._mean * share


@dataclass(kw_only=True, eq=False)
class Relative(Links):
    """A download and an upload each take 1 % of the federation's mean training time.

    The paper of FedASMU gives divisors of its bandwidths, but no unit.

    Args:
        mean_seconds: training time of every client, all > 0.
        slowdown: divisor of the bandwidth, > 0.
    """

    mean_seconds: Sequence[float]
    slowdown: float = bounded(1.0, POSITIVE, "there would be no bandwidth")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mean = SHARE * self.slowdown * fmean(self.mean_seconds)


@dataclass(kw_only=True, eq=False)
class Link(Links):
    """Every client has a link of the same bandwidth and latency.

    A transfer takes ``latency + num_bytes / bandwidth * U(1 - jitter, 1 + jitter)``.

    Args:
        num_bytes: size of a model, > 0.
        down: bytes per second to a client, > 0.
        up: bytes per second from a client, > 0.
        latency: seconds before the first byte arrives, >= 0.
        seed: seed of the run.
        jitter: relative half-width of a transfer's deviation, in [0, 1).
    """

    num_bytes: int
    down: float = bounded(1.25e6, POSITIVE, "no model would ever reach a client")
    up: float = bounded(0.625e6, POSITIVE, "no update would ever reach the server")
    latency: float = bounded(0.05, NON_NEGATIVE, "it would arrive before it was sent")
    seed: int = 0
    jitter: float = bounded(0.2, BELOW_1, "a transfer could take no time")

    def _seconds(self, way: Way, client_id: int, sequence: int, share: float) -> float:
        draw = uniform(self.seed, client_id, sequence, f"{way}load".encode())
        speed = self.down if way == "down" else self.up
        return self.latency + self.num_bytes * share / speed * around(self.jitter, draw)


@dataclass(kw_only=True, eq=False)
class Queue(Links):
    """Every order waits in a batch queue before its training; models travel in no time.

    The wait counts as the download, and is log-normal with mean ``delay``.

    Args:
        delay: mean seconds of a wait, > 0.
        sigma: standard deviation of the wait's logarithm, >= 0.
        seed: seed of the run.
    """

    delay: float = bounded(2.0, POSITIVE, "leave devices.network out")
    sigma: float = bounded(0.4, NON_NEGATIVE, "a spread cannot be negative")
    seed: int = 0

    def _seconds(self, way: Way, client_id: int, sequence: int, share: float) -> float:
        if way == "up":
            return 0.0
        return self.delay * log_normal(
            self.sigma, uniform(self.seed, client_id, sequence, b"queue")
        )


@dataclass(kw_only=True, eq=False)
class MeasuredLinks(Links):
    """Every client has one of 19 links measured in the field, drawn at random.

    A transfer takes ``num_bytes / speed``. The speed is normal, with the link's mean and deviation,
    truncated below a tenth of the mean. ``tables/README.md`` names the source.

    Args:
        num_bytes: size of a model.
        num_clients: N >= 1.
        seed: seed of the run.
        slowdown: divisor of all speeds, > 0.
    """

    num_bytes: int
    num_clients: int
    seed: int = 0
    slowdown: float = bounded(1.0, POSITIVE, "there would be no bandwidth")

    def __post_init__(self) -> None:
        super().__post_init__()
        links = rows_of("links.json")
        rng = np.random.default_rng((self.seed, STREAM, 1))
        self._links = [links[place] for place in rng.integers(len(links), size=self.num_clients)]

    def _seconds(self, way: Way, client_id: int, sequence: int, share: float) -> float:
        draw = uniform(self.seed, client_id, sequence, f"{way}load".encode())
        mean, sigma = (self._links[client_id][f"{way}_{each}"] for each in ("mean", "sigma"))
        speed = normal_above(mean, sigma, MIN_SPEED * mean, draw)
        return self.num_bytes * self.slowdown * share / speed


@dataclass(kw_only=True, eq=False)
class BoardLinks(Links):
    """The links of `fl_app.devices.compute.Boards`, from their device file.

    A transfer takes ``latency + num_bytes / speed``, and no time if the file has no link.

    Args:
        num_bytes: size of a model.
        num_clients: N.
        table: as of `fl_app.devices.compute.Boards`.
        boards: as of `fl_app.devices.compute.Boards`.
    """

    num_bytes: int
    num_clients: int
    table: str
    boards: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = boards_of(self.table, self.boards, self.num_clients)[1]
        self._links = [kind.network for kind in kinds]

    def _seconds(self, way: Way, client_id: int, sequence: int, share: float) -> float:
        link = self._links[client_id]
        if link is None:
            return 0.0
        return link.latency + self.num_bytes * share / (link.down if way == "down" else link.up)


@dataclass(kw_only=True, eq=False)
class OverlapNetwork(Links):
    """Download and upload take half of the communication in Overlap-FedAvg's Table 4 each.

    Args:
        num_bytes: size of a model, 4 bytes per parameter.

    Raises:
        ValueError: Table 4 does not have the model.
    """

    num_bytes: int

    def __post_init__(self) -> None:
        self._mean = table_4(self.num_bytes)[1] / 2
