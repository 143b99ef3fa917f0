"""When clients are online: each client's stays, which alternate between online and offline."""

from dataclasses import dataclass

from fl_app.core.errors import require
from fl_app.core.hyper import POSITIVE, bounded, check_bounds, within
from fl_app.devices.draws import around, exponential, uniform


@dataclass(kw_only=True, eq=False)
class Churn:
    """Clients come and go at random, in independent stays of exponential length.

    At second 0 a client is online with its long-run probability.

    Args:
        mean_online: mean seconds of a stay online, > 0.
        mean_offline: mean seconds of a stay offline, > 0.
        seed: seed of the run.

    Raises:
        ValueError: a value is out of its bounds.
    """

    mean_online: float = bounded(60.0, POSITIVE, "no client would ever be online")
    mean_offline: float = bounded(30.0, POSITIVE, "leave devices.availability out")
    seed: int = 0

    def __post_init__(self) -> None:
        check_bounds("devices.availability", self)

    def starts_online(self, client_id: int) -> bool:
        """Whether the client is online at second 0."""
        return uniform(self.seed, client_id, 0, b"online") < self.mean_online / (
            self.mean_online + self.mean_offline
        )

    def stay(self, client_id: int, number: int) -> float:
        """Seconds of the client's stay `number` >= 0; online and offline stays alternate."""
        online = self.starts_online(client_id) == (number % 2 == 0)
        mean = self.mean_online if online else self.mean_offline
        return mean * exponential(uniform(self.seed, client_id, number, b"stay"))


@dataclass(kw_only=True, eq=False)
class Diurnal:
    """Each client is online for a part of every day, at hours that depend on the client.

    A client's day 0 begins ``day_seconds * spread * U(0, 1)`` before second 0. The client is online
    at the beginning of each of its days, for ``day_seconds * online_share * U(1 - jitter, 1 +
    jitter)``.

    Args:
        day_seconds: length of a day, > 0.
        online_share: mean part of a day that a client is online, in (0, 1).
        spread: part of a day over which the clients' days begin, in [0, 1]; with 0 all come and go
            together.
        jitter: relative half-width of the daily deviation, >= 0, with ``online_share * (1 + jitter)
            < 1``.
        seed: seed of the run.

    Raises:
        ValueError: a value is out of its bounds.
    """

    day_seconds: float = bounded(86400.0, POSITIVE, "days would never pass")
    online_share: float = bounded(0.5, POSITIVE, "no client would ever be online")
    spread: float = bounded(0.5, within("[0, 1]"), "it is a share of a day")
    jitter: float = bounded(0.1, within("[0, 1)"), "a stay could take no time")
    seed: int = 0

    def __post_init__(self) -> None:
        check_bounds("devices.availability", self)
        require(
            self.online_share * (1 + self.jitter) < 1,
            "devices.availability.online_share",
            self.online_share,
            f"below {1 / (1 + self.jitter):g} with devices.availability.jitter={self.jitter}",
            "a client could be online for more than a day",
        )

    def starts_online(self, client_id: int) -> bool:
        """Whether the client is online at second 0."""
        return self._past(client_id) < self._online(client_id, 0)

    def stay(self, client_id: int, number: int) -> float:
        """Seconds of the client's stay `number` >= 0; online and offline stays alternate."""
        # The number counted from the beginning of day 0, before second 0: even stays are online.
        absolute = number if self.starts_online(client_id) else number + 1
        online = self._online(client_id, absolute // 2)
        whole = online if absolute % 2 == 0 else self.day_seconds - online
        if number > 0:
            return whole
        past = self._past(client_id)
        return (online if absolute == 0 else self.day_seconds) - past

    def _past(self, client_id: int) -> float:
        """Seconds of the client's day 0 that lie before second 0."""
        return self.day_seconds * self.spread * uniform(self.seed, client_id, 0, b"day")

    def _online(self, client_id: int, day: int) -> float:
        """Seconds online on the client's day `day`."""
        draw = uniform(self.seed, client_id, day, b"stay")
        return self.day_seconds * self.online_share * around(self.jitter, draw)
