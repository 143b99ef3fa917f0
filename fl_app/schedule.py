"""When: which idle clients start now, and which buffered updates are aggregated now.

One class covers the classic regimes. With M_c clients at work and a buffer of K updates:

| regime | K | freed places are refilled |
|---|---|---|
| synchronous | K = M_c (the cohort) | after the aggregation |
| K-asynchronous | K < M_c | after the aggregation; where all clients take part: by the same K |
| buffered (FedBuff) | K <= M_c | at once |
| fully asynchronous (FedAsync) | 1 | at once |
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from fl_app.core.errors import require, require_count
from fl_app.core.pool import ClientPool
from fl_app.core.types import Order, Update

Refill = Literal["at_once", "after_aggregation"]


class Schedule(Protocol):
    """Decides when clients start and when updates are aggregated; never how.

    Schedules subclass it, for the defaults of what few of them need.
    """

    def start(
        self,
        idle: ClientPool,
        busy: Collection[int],
        buffer: Sequence[Update],
        rng: np.random.Generator,
    ) -> Sequence[int]:
        """Clients that begin now, out of `idle`.

        Args:
            idle: clients with nothing to do; those whose update waits in `buffer` are among them.
            busy: clients at work on an order.
            buffer: updates that arrived and are not aggregated yet, oldest first.
            rng: the run's random generator for this purpose.
        """
        ...

    def take(self, buffer: Sequence[Update]) -> Sequence[Update]:
        """Updates to aggregate now, exactly those; empty = wait for more."""
        ...

    def check(self, num_clients: int) -> None:
        """Refuse a federation that this schedule can never serve.

        Raises:
            ValueError: naming the key, its bound and what would happen.
        """
        ...

    def wake(self, now: float) -> float:
        """When to be asked again, should nothing happen before; inf = never.

        If nothing is under way then, and nobody starts, the run has stalled.

        Args:
            now: seconds on the run's clock, at which `start` is asked next.
        """
        del now
        return math.inf

    def urgent(self, busy: Mapping[int, Order], version: int) -> Sequence[int]:
        """Clients that shall send what they have at the end of their local epoch.

        Asked after every aggregation; on real nodes, which hear nothing while they train, without
        effect.

        Args:
            busy: clients at work, with their orders.
            version: of the global model.
        """
        del busy, version
        return ()

    @property
    def surveys(self) -> bool:
        """Whether `survey` may yet say yes: every client's latest upload is kept until then."""
        return False

    def survey(self, version: int, buffer: Sequence[Update]) -> bool:
        """Whether clusters of clients are to be formed now, before anything else is taken."""
        del version, buffer
        return False

    def regroup(self, clusters: Mapping[int, int], buffer: Sequence[Update]) -> Sequence[Update]:
        """Go by these clusters from now on; `survey` asked for them.

        Args:
            clusters: client -> cluster, numbered from 0 by falling size.
            buffer: updates that wait.

        Returns:
            Those of `buffer` that were ordered for the clusters alone; they are dropped.
        """
        del clusters, buffer
        return ()


@dataclass(frozen=True)
class Buffered(Schedule):
    """Keep `concurrency` clients at work; aggregate every `buffer_size` updates.

    Attributes:
        concurrency: M_c, clients at work at a time; None = every registered client.
        buffer_size: K, updates per aggregation, 1 <= K <= M_c.
        refill: when a place that an arrival freed is given to a random idle client: ``"at_once"``,
            or ``"after_aggregation"`` (where all clients take part: to those just aggregated).

    Raises:
        ValueError: a bound is violated.
    """

    concurrency: int | None = 10
    buffer_size: int = 10
    refill: Refill = "at_once"

    def __post_init__(self) -> None:
        require_count(
            "schedule.buffer_size",
            self.buffer_size,
            "the server would publish versions out of nothing",
        )
        if self.concurrency is not None:
            require_count("schedule.concurrency", self.concurrency, "no client would ever start")
            require(
                self.buffer_size <= self.concurrency,
                "schedule.buffer_size",
                self.buffer_size,
                f"between 1 and schedule.concurrency={self.concurrency}",
                "the server would wait for ever",
            )
        require(
            self.refill in get_args(Refill),
            "schedule.refill",
            self.refill,
            f"one of {', '.join(get_args(Refill))}",
            "no other moment is known",
        )

    def start(
        self,
        idle: ClientPool,
        busy: Collection[int],
        buffer: Sequence[Update],
        rng: np.random.Generator,
    ) -> Sequence[int]:
        if not idle:
            return ()
        if self.refill == "at_once":
            free = len(idle) if self.concurrency is None else self.concurrency - len(busy)
            return idle.draw(free, rng) if free > 0 else ()
        waiting = {update.client_id for update in buffer}
        if self.concurrency is None:
            # Those who wait may be offline and keep nobody else from starting.
            free = len(idle) - sum(client_id in idle for client_id in waiting)
        else:
            free = self.concurrency - len(busy) - len(buffer)
        return idle.draw(free, rng, exclude=waiting) if free > 0 else ()

    def take(self, buffer: Sequence[Update]) -> Sequence[Update]:
        return buffer[: self.buffer_size] if len(buffer) >= self.buffer_size else ()

    def check(self, num_clients: int) -> None:
        concurrency = num_clients if self.concurrency is None else self.concurrency
        require(
            concurrency <= num_clients,
            "schedule.concurrency",
            concurrency,
            f"at most num_clients={num_clients}",
            "so many clients can never be at work",
        )
        require(
            self.buffer_size <= num_clients,
            "schedule.buffer_size",
            self.buffer_size,
            f"at most num_clients={num_clients}",
            "the server would wait for ever",
        )


def synchronous(buffer_size: int = 10) -> Buffered:
    """Rounds: a cohort of K random clients starts together, the server waits for all of them."""
    return Buffered(buffer_size, buffer_size, "after_aggregation")


def k_async(buffer_size: int = 10, concurrency: int | None = None) -> Buffered:
    """All (or `concurrency`) clients at work; the first K are aggregated, then K start.

    Where all take part, those who start are those who were aggregated; else they are drawn at
    random from those who do nothing.
    """
    return Buffered(concurrency, buffer_size, "after_aggregation")


def fully_async(concurrency: int | None = 10) -> Buffered:
    """Every arrival makes a version, and its place is refilled at once."""
    return Buffered(concurrency, 1)


class RoundBlocking(Schedule):
    """K-asynchronous in rounds: every client's update is taken once before any is taken again.

    GSGM's schedule (Li et al. 2019). All clients are at work, participants restart after the
    aggregation. Who reports again in the same round waits for the next one, and so do fewer than K
    updates unless nobody else is left in the round. No round waits for a client that is not there,
    or whose last order brought nothing.

    Args:
        buffer_size: K.

    Raises:
        ValueError: K < 1.
    """

    def __init__(self, buffer_size: int = 10) -> None:
        require_count(
            "schedule.buffer_size", buffer_size, "the server would publish versions out of nothing"
        )
        self.buffer_size = buffer_size
        self._used: set[int] = set()  # in this round
        self._present: float = math.inf  # clients that are idle or at work
        self._ordered: set[int] = set()  # clients whose order has brought nothing so far
        self._failed: set[int] = set()  # those of them who are there and were given another

    def start(
        self,
        idle: ClientPool,
        busy: Collection[int],
        buffer: Sequence[Update],
        rng: np.random.Generator,
    ) -> Sequence[int]:
        """Whoever is idle and not waiting for the aggregation."""
        del rng
        starting = not_waiting(idle, buffer)
        self._present = len(idle) + len(busy)
        self._failed = {c for c in self._failed if c in idle or c in busy}
        self._failed |= self._ordered.intersection(starting)
        self._ordered.update(starting)
        return starting

    def take(self, buffer: Sequence[Update]) -> Sequence[Update]:
        """The first K updates of clients not taken in this round, which counts them as taken."""
        arrived = {update.client_id for update in buffer}
        if self._left(arrived) <= 0:
            self._used = set()
        eligible = [update for update in buffer if update.client_id not in self._used]
        if len(eligible) < min(self.buffer_size, self._left(arrived)):
            return ()
        taken = eligible[: self.buffer_size]
        delivered = {update.client_id for update in taken}
        self._used |= delivered
        self._ordered -= delivered
        self._failed -= delivered
        return taken

    def check(self, num_clients: int) -> None:
        require(
            self.buffer_size <= num_clients,
            "schedule.buffer_size",
            self.buffer_size,
            f"at most num_clients={num_clients}",
            "the server would wait for ever",
        )

    def _left(self, arrived: set[int]) -> float:
        """How many clients' turns are still to come in this round."""
        # Who left after its turn is counted as used and not as present: the round then ends
        # without somebody who is still at work, rather than never.
        return self._present - len(self._used) - len(self._failed - self._used - arrived)


class RandomK(Schedule):
    """Every iteration, K of P clients drawn uniformly without replacement report.

    The speed model of WKAFL's published code: all clients are at work on the model they received
    when they last reported, and iteration j falls on second j of virtual time. The draw decides
    how long each order takes (`seconds`), so this schedule is also the run's device profile.

    Args:
        buffer_size: K.
        num_clients: P.
        seed: of the draws.

    Raises:
        ValueError: not 1 <= K <= P.
    """

    def __init__(self, buffer_size: int, num_clients: int, seed: int) -> None:
        require_count(
            "schedule.buffer_size", buffer_size, "the server would publish versions out of nothing"
        )
        require(
            buffer_size <= num_clients,
            "schedule.buffer_size",
            buffer_size,
            f"between 1 and num_clients={num_clients}",
            "so many clients cannot be drawn without replacement",
        )
        self.buffer_size = buffer_size
        self.num_clients = num_clients
        self._rng = np.random.default_rng((seed, 0x5A4D))
        self._iteration = 0
        self._draws: dict[int, deque[int]] = defaultdict(deque)

    def start(
        self,
        idle: ClientPool,
        busy: Collection[int],
        buffer: Sequence[Update],
        rng: np.random.Generator,
    ) -> Sequence[int]:
        """Whoever is idle and not waiting for the aggregation."""
        del busy, rng
        return not_waiting(idle, buffer)

    def take(self, buffer: Sequence[Update]) -> Sequence[Update]:
        return buffer[: self.buffer_size] if len(buffer) >= self.buffer_size else ()

    def check(self, num_clients: int) -> None:
        require(
            num_clients == self.num_clients,
            "schedule.num_clients",
            self.num_clients,
            f"num_clients={num_clients}",
            "draws would name clients that do not exist",
        )

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        """Virtual seconds from `now` to the next iteration that draws this client."""
        del sequence
        upcoming = self._draws[client_id]
        while upcoming and upcoming[0] <= now:
            upcoming.popleft()
        while not upcoming:
            self._iteration += 1
            for drawn in self._rng.choice(self.num_clients, self.buffer_size, replace=False):
                self._draws[int(drawn)].append(self._iteration)
            while upcoming and upcoming[0] <= now:
                upcoming.popleft()
        return upcoming.popleft() - now


def not_waiting(idle: ClientPool, buffer: Sequence[Update]) -> Sequence[int]:
    """Idle clients without an update in the buffer, who may be offline and idle no more."""
    if not idle:
        return ()
    waiting = {update.client_id for update in buffer}
    return [client_id for client_id in idle if client_id not in waiting]
