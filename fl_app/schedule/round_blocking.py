"""Rounds that stragglers of earlier rounds may join late."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from fl_app.core.hyper import bounded, check_bounds, count, one_of
from fl_app.core.pool import ClientPool
from fl_app.schedule.base import Ids, Schedule, Updates, not_waiting, require_fits

MOMENTS = one_of("at_once", "next_round")


@dataclass(eq=False)
class RoundBlocking(Schedule):
    """K-asynchronous in rounds: every client's update is taken once before any is taken again.

    GSGM's schedule (Li et al. 2019). All clients are at work, participants restart after the
    aggregation. A client's second update in a round waits for the next round. Fewer than K
    updates wait too, unless no other client is left in the round. No round waits for a client that
    is offline or whose last order brought nothing.

    Args:
        buffer_size: K.
        restart: when a client whose update was taken starts again: ``"at_once"``, on a model of the
            same round, or with the ``"next_round"``.

    Raises:
        ValueError: a value is out of its bounds.
    """

    buffer_size: int = bounded(10, count(), "the server would make versions out of nothing")
    restart: str = bounded("at_once", MOMENTS, "no other moment is known")

    remembers = ("_used", "_present", "_ordered", "_failed")

    def __post_init__(self) -> None:
        check_bounds("algorithm.schedule", self)
        self._used: set[int] = set()  # in this round
        self._evaluating: set[int] = set()
        self._present: float = math.inf  # clients that are idle, at work or evaluating
        self._ordered: set[int] = set()  # clients whose order has brought nothing so far
        self._failed: set[int] = set()  # those of them that are there and were given another

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Generator) -> Sequence[int]:
        """Idle clients whose update does not wait for the aggregation."""
        del rng
        starting = not_waiting(idle, buffer)
        at_work = {*busy, *self._evaluating}
        self._present = len(idle) + len(at_work)
        self._failed = {c for c in self._failed if c in idle or c in at_work}
        if self.restart == "next_round":
            if self._left({update.client_id for update in buffer}) <= 0:
                self._used = set()
            starting = [client_id for client_id in starting if client_id not in self._used]
        self._failed |= self._ordered.intersection(starting)
        self._ordered.update(starting)
        return starting

    def evaluating(self, clients: Ids) -> None:
        self._evaluating = set(clients)

    def take(self, buffer: Updates) -> Updates:
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

    def validate_population(self, num_clients: int) -> None:
        waits = "the server would wait for ever"
        require_fits("buffer_size", self.buffer_size, num_clients, waits)

    def _left(self, arrived: set[int]) -> float:
        """How many clients' turns are still to come in this round."""
        # A client that left after its turn is counted as used and not as present. The round then
        # ends without a client that is still at work; otherwise it would never end.
        return self._present - len(self._used) - len(self._failed - self._used - arrived)
