"""The cost of an order: seconds and joules of download, training and upload."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fl_app.core.errors import require_at_least
from fl_app.core.types import Parts


class Compute(Protocol):
    """How long training takes (`fl_app.devices.compute`)."""

    @property
    def mean_seconds(self) -> Sequence[float]:
        """Mean seconds of every client."""
        ...

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        """Seconds of the client's order with sequence number `sequence` given at `now`."""
        ...


class Network(Protocol):
    """How long transfers take (`fl_app.devices.network`)."""

    def download(self, client_id: int, sequence: int) -> float:
        """Seconds until the client has the model of its order number `sequence`."""
        ...

    def upload(self, client_id: int, sequence: int) -> float:
        """Seconds from the end of training until the server has the update."""
        ...


@dataclass(frozen=True)
class Energy:
    """The power that a device draws beyond its idle power.

    Attributes:
        compute_watts: while it trains, >= 0.
        radio_watts: while it sends or receives, >= 0.

    Raises:
        ValueError: a value is out of its bounds.
    """

    compute_watts: float
    radio_watts: float

    def __post_init__(self) -> None:
        for key in ("compute_watts", "radio_watts"):
            require_at_least(
                f"devices.energy.{key}", getattr(self, key), 0, "training would charge the battery"
            )


class Fleet:
    """The devices of all clients: the engine's `Devices`.

    An order takes download + training + upload. Each is a function of (seed, client, sequence
    number).

    Args:
        compute: training times.
        network: transfer times; None = transfers take no time.
        energy: power of the devices; None = unknown.
        first: transfer times of a client's first order, with which the model's fixed part travels;
            None = those of `network`.
    """

    def __init__(
        self,
        compute: Compute,
        network: Network | None = None,
        energy: Energy | None = None,
        first: Network | None = None,
    ) -> None:
        self._compute = compute
        self._network = network
        self._energy = energy
        self._first = first or network

    def parts(self, client_id: int, sequence: int, now: float) -> Parts:
        """Seconds of the client's order with sequence number `sequence` given at `now`."""
        training = self._compute.seconds(client_id, sequence, now)
        network = self._network if sequence else self._first
        if network is None:
            return Parts(0.0, training, 0.0)
        return Parts(
            network.download(client_id, sequence), training, network.upload(client_id, sequence)
        )

    def joules(
        self, client_id: int, sequence: int, now: float, elapsed: float = math.inf
    ) -> float | None:
        """Energy of the first `elapsed` seconds of an order; None if it is unknown.

        Args:
            client_id: the client of the order.
            sequence: the order's sequence number.
            now: when the order was given, seconds.
            elapsed: seconds since then; fewer than the whole order's if it was cut short.
        """
        return self.joules_of(self.parts(client_id, sequence, now), elapsed)

    def joules_of(self, parts: Parts, elapsed: float = math.inf) -> float | None:
        """Energy of the first `elapsed` seconds of a download, training and upload."""
        if self._energy is None:
            return None
        download = min(elapsed, parts.download)
        training = min(elapsed - download, parts.training)
        upload = min(elapsed - download - training, parts.upload)
        return (
            training * self._energy.compute_watts + (download + upload) * self._energy.radio_watts
        )
