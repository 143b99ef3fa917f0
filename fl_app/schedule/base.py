"""Schedules: which idle clients start now, and which buffered updates are aggregated now.

One class, `Buffered`, covers the classic regimes. With M_c clients at work and K updates per
aggregation:

| regime | K | freed places are refilled |
|---|---|---|
| synchronous | K = M_c (the cohort) | after the aggregation |
| K-asynchronous | K < M_c | after the aggregation; if all clients work, by the same K |
| buffered (FedBuff) | K <= M_c | at once |
| fully asynchronous (FedAsync) | 1 | at once |
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Protocol, TypeAlias

from fl_app.core.hyper import Checked
from fl_app.core.pool import ClientPool
from fl_app.core.snapshot import Remembers
from fl_app.core.types import Config, Devices, Order, Parts, Rng, Updates

Ids: TypeAlias = Collection[int]

# Attributes that are numbers of clients -> what happens if there are fewer clients.
CLIENT_COUNTS = {
    "concurrency": "so many clients can never be at work",
    "buffer_size": "the server would wait for ever",
    "num_clusters": "the server would wait for ever for a client in each cluster",
}


class Schedule(Remembers, Checked, Protocol):
    """Decides when clients start and when updates are aggregated; never how.

    Schedules subclass it to inherit the defaults of the methods that few of them need.

    Attributes:
        shares: how often each client is drawn, of mean 1; empty = all alike.
    """

    _group: ClassVar[str] = "algorithm.schedule"

    shares: Sequence[float] = ()

    def __init__(self) -> None:  # else a class without fields seems to take any arguments
        return

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        """Clients that begin now, out of `idle`.

        Args:
            idle: clients with nothing to do; those whose update waits in `buffer` are among them.
            busy: clients at work on an order.
            buffer: updates that arrived and are not aggregated yet, oldest first.
            rng: the run's random generator for this purpose.
        """

    def work(self, client_id: int) -> Config:
        """Config values for a client that `start` has chosen, such as ``local_steps``.

        They take precedence over the strategy's config of the order (`Algorithm.dispatch`).
        """
        return {}

    def observe(self, evaluating: Ids, failing: Ids) -> None:
        """Receive what else is known of clients; called before each `start`.

        Args:
            evaluating: they work on an evaluate order: neither idle nor busy, and they come back.
            failing: their last training order brought nothing.
        """
        return

    def take(self, buffer: Updates) -> Updates:
        """Updates to aggregate now, exactly those; empty = wait for more.

        Here the first `min_clients` of them, once there are so many.
        """
        size = self.min_clients
        return buffer[:size] if len(buffer) >= size else ()

    @property
    def min_clients(self) -> int:
        """The fewest clients that can make a version, each by one update."""
        return int(getattr(self, "buffer_size", 1))

    def validate_population(self, num_clients: int) -> None:
        """Refuse a federation that this schedule can never serve.

        Raises:
            ValueError: naming the key, its bound and what would happen.
        """
        for key, consequence in CLIENT_COUNTS.items():
            if (count := getattr(self, key, None)) is not None:
                bound = f"at most num_clients={num_clients}"
                self._require(count <= num_clients, key, bound, consequence)

    def wake(self, now: float) -> float:
        """When `start` is called again if nothing happens before, seconds; inf = never.

        If no order is under way then and no client starts, the run has stalled.

        Args:
            now: seconds on the run's clock; `start` is called next.
        """
        return math.inf

    def tell_time(self, now: float) -> None:
        """Receive the seconds on the run's clock; called before `take`."""
        return

    def recall(self, busy: Mapping[int, Order], version: int) -> Sequence[int]:
        """Clients that are to send what they have at the end of their local epoch.

        Called after every aggregation. A recall does not reach a real node while it trains.

        Args:
            busy: clients at work, with their orders.
            version: of the global model.
        """
        return ()

    def settle(self, parts: Callable[..., Parts], joules: Callable[..., float] | None) -> None:
        """Receive what orders take on simulated devices, before the first order.

        Args:
            parts: `Devices.parts`.
            joules: of `Parts.logged`; None = unknown.
        """
        return

    @property
    def devices(self) -> Devices | None:
        """The devices whose times this schedule decides itself; None = the run's devices."""
        return None

    @property
    def surveys(self) -> bool:
        """Whether `survey` may still be true; every client's latest upload is kept until then."""
        return False

    def survey(self, version: int, buffer: Updates) -> bool:
        """Whether clusters of clients are to be formed now, before anything else is taken."""
        return False

    def regroup(self, clusters: Mapping[int, int], buffer: Updates) -> Updates:
        """Use these clusters from now on; `survey` has asked for them.

        Args:
            clusters: client -> cluster, numbered from 0 by falling size.
            buffer: updates that wait.

        Returns:
            Updates of `buffer` that only served to form clusters; they are dropped.
        """
        return ()


class Attentive(Schedule):
    """A schedule that keeps what `observe` received last."""

    transient = ("_evaluating", "_failing")
    _evaluating: Ids = ()
    _failing: Ids = ()

    def observe(self, evaluating: Ids, failing: Ids) -> None:
        self._evaluating, self._failing = evaluating, failing


def not_waiting(idle: ClientPool, buffer: Updates) -> Sequence[int]:
    """Idle clients without an update in the buffer."""
    waiting = {update.client_id for update in buffer}
    return [client_id for client_id in idle if client_id not in waiting]
