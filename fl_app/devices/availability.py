"""When clients are online: each client's stays, which alternate between online and offline."""

from fl_app.core.errors import require, require_at_least, require_positive
from fl_app.devices.draws import around, exponential, uniform


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

    def __init__(
        self, *, mean_online: float = 60.0, mean_offline: float = 30.0, seed: int = 0
    ) -> None:
        require_positive(
            "devices.availability.mean_online", mean_online, "no client would ever be online"
        )
        require_positive(
            "devices.availability.mean_offline", mean_offline, "leave devices.availability out"
        )
        self._mean = {True: mean_online, False: mean_offline}
        self._share = mean_online / (mean_online + mean_offline)
        self._seed = seed

    def starts_online(self, client_id: int) -> bool:
        """Whether the client is online at second 0."""
        return uniform(self._seed, client_id, 0, b"online") < self._share

    def stay(self, client_id: int, number: int) -> float:
        """Seconds of the client's stay `number` >= 0; online and offline stays alternate."""
        online = self.starts_online(client_id) == (number % 2 == 0)
        return self._mean[online] * exponential(uniform(self._seed, client_id, number, b"stay"))


class Diurnal:
    """Each client is online for a part of every day, at hours that depend on the client.

    A client's day 0 begins ``day_seconds * spread * U(0, 1)`` before second 0. The client is online
    at the beginning of each of its days, for ``day_seconds * online_share * U(1 - jitter, 1 +
    jitter)``.

    Args:
        day_seconds: length of a day, > 0.
        online_share: mean part of a day that a client is online, in (0, 1).
        spread: part of a day over which the clients' days begin, in [0, 1]. With 1 about as many
            clients are online at any hour; with 0 all come and go together.
        jitter: relative half-width of the daily deviation of the time online, >= 0, with
            ``online_share * (1 + jitter) < 1``.
        seed: seed of the run.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(
        self,
        *,
        day_seconds: float = 86400.0,
        online_share: float = 0.5,
        spread: float = 0.5,
        jitter: float = 0.1,
        seed: int = 0,
    ) -> None:
        prefix = "devices.availability"
        require_positive(f"{prefix}.day_seconds", day_seconds, "days would never pass")
        require_positive(f"{prefix}.online_share", online_share, "no client would ever be online")
        require_at_least(f"{prefix}.spread", spread, 0, "it is a share of a day")
        require(spread <= 1, f"{prefix}.spread", spread, "at most 1", "it is a share of a day")
        require_at_least(f"{prefix}.jitter", jitter, 0, "a stay could not be drawn")
        require(jitter < 1, f"{prefix}.jitter", jitter, "below 1", "a stay could take no time")
        require(
            online_share * (1 + jitter) < 1,
            f"{prefix}.online_share",
            online_share,
            f"below {1 / (1 + jitter):g} with {prefix}.jitter={jitter}",
            "a client could be online for more than a day",
        )
        self._day = day_seconds
        self._share = online_share
        self._spread = spread
        self._jitter = jitter
        self._seed = seed

    def starts_online(self, client_id: int) -> bool:
        """Whether the client is online at second 0."""
        return self._past(client_id) < self._online(client_id, 0)

    def stay(self, client_id: int, number: int) -> float:
        """Seconds of the client's stay `number` >= 0; online and offline stays alternate."""
        # The number counted from the beginning of day 0, before second 0: even stays are online.
        absolute = number if self.starts_online(client_id) else number + 1
        online = self._online(client_id, absolute // 2)
        whole = online if absolute % 2 == 0 else self._day - online
        if number > 0:
            return whole
        past = self._past(client_id)
        return (online if absolute == 0 else self._day) - past

    def _past(self, client_id: int) -> float:
        """Seconds of the client's day 0 that lie before second 0."""
        return self._day * self._spread * uniform(self._seed, client_id, 0, b"day")

    def _online(self, client_id: int, day: int) -> float:
        """Seconds online on the client's day `day`."""
        draw = uniform(self._seed, client_id, day, b"stay")
        return self._day * self._share * around(self._jitter, draw)
