"""How many seconds the download and the upload of a model take."""

from collections.abc import Sequence
from statistics import fmean

from fl_app.core.errors import require, require_at_least, require_positive
from fl_app.devices.draws import around, uniform


class Relative:
    """A download and an upload each take a fixed share of the federation's mean training time.

    The paper of FedASMU gives divisors of its bandwidths, but no unit.

    Args:
        mean_seconds: training time of every client, all > 0.
        share: duration of a transfer at normal bandwidth as a share of the mean, >= 0.
        slowdown: divisor of the bandwidth, > 0.
        download_share: size of an order over that of a model.
        upload_share: size of an upload over that of a model.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(
        self,
        *,
        mean_seconds: Sequence[float],
        share: float = 0.01,
        slowdown: float = 1.0,
        download_share: float = 1.0,
        upload_share: float = 1.0,
    ) -> None:
        require_at_least(
            "devices.network.share", share, 0, "a model would arrive before it was sent"
        )
        require_positive("devices.network.slowdown", slowdown, "there would be no bandwidth")
        self._seconds = share * slowdown * fmean(mean_seconds)
        self._download_share = download_share
        self._upload_share = upload_share

    def download(self, client_id: int, sequence: int) -> float:
        """Seconds until the client has the model of its order number `sequence`."""
        return self._seconds * self._download_share

    def upload(self, client_id: int, sequence: int) -> float:
        """Seconds from the end of training until the server has the update."""
        return self._seconds * self._upload_share


class Link:
    """Every client has a link of the same bandwidth and latency.

    A transfer takes ``latency + num_bytes / bandwidth * U(1 - jitter, 1 + jitter)``.

    Args:
        num_bytes: size of a model, > 0.
        down: bytes per second to a client, > 0.
        up: bytes per second from a client, > 0.
        latency: seconds before the first byte arrives, >= 0.
        seed: seed of the run.
        jitter: relative half-width of a transfer's deviation, in [0, 1).
        download_share: size of an order over that of a model.
        upload_share: size of an upload over that of a model.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(
        self,
        *,
        num_bytes: int,
        down: float = 1.25e6,
        up: float = 0.625e6,
        latency: float = 0.05,
        seed: int = 0,
        jitter: float = 0.2,
        download_share: float = 1.0,
        upload_share: float = 1.0,
    ) -> None:
        require_positive("devices.network.down", down, "no model would ever reach a client")
        require_positive("devices.network.up", up, "no update would ever reach the server")
        require_at_least(
            "devices.network.latency", latency, 0, "it would arrive before it was sent"
        )
        require_at_least("devices.network.jitter", jitter, 0, "its time could not be drawn")
        require(
            jitter < 1, "devices.network.jitter", jitter, "below 1", "a transfer could take no time"
        )
        self._down = num_bytes * download_share / down
        self._up = num_bytes * upload_share / up
        self._latency = latency
        self._seed = seed
        self._jitter = jitter

    def download(self, client_id: int, sequence: int) -> float:
        """See `Relative.download`."""
        draw = uniform(self._seed, client_id, sequence, b"download")
        return self._latency + self._down * around(self._jitter, draw)

    def upload(self, client_id: int, sequence: int) -> float:
        """See `Relative.upload`."""
        draw = uniform(self._seed, client_id, sequence, b"upload")
        return self._latency + self._up * around(self._jitter, draw)
