"""Rounds that stragglers of earlier rounds may join late."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from fl_app.core.errors import require, require_count
from fl_app.core.pool import ClientPool
from fl_app.core.types import Update
from fl_app.schedule.base import Schedule, not_waiting

Restart: TypeAlias = Literal["at_once", "next_round"]


class RoundBlocking(Schedule):
    """K-asynchronous in rounds: every client's update is taken once before any is taken again.

    GSGM's schedule (Li et al. 2019). All clients are at work, participants restart after the
    aggregation. A client's second update in a round waits for the next round. Fewer than K
    updates wait too, unless no other client is left in the round. No round waits for a client that
    is offline or whose last order brought nothing.

    Args:
        buffer_size: K.
        restart: when a client whose update was taken starts again: ``"at_once"``, so that its
            second update is computed on a model of the same round, or with the ``"next_round"``,
            on the model that it begins with.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(self, buffer_size: int = 10, restart: Restart = "at_once") -> None:
        require_count(
            "algorithm.schedule.buffer_size",
            buffer_size,
            "the server would publish versions out of nothing",
        )
        require(
            restart in get_args(Restart),
            "algorithm.schedule.restart",
            restart,
            f"one of {', '.join(get_args(Restart))}",
            "no other moment is known",
        )
        self.buffer_size = buffer_size
        self.restart = restart
        self._used: set[int] = set()  # in this round
        self._evaluating: set[int] = set()
        self._present: float = math.inf  # clients that are idle, at work or evaluating
        self._ordered: set[int] = set()  # clients whose order has brought nothing so far
        self._failed: set[int] = set()  # those of them that are there and were given another

    def start(
        self,
        idle: ClientPool,
        busy: Collection[int],
        buffer: Sequence[Update],
        rng: np.random.Generator,
    ) -> Sequence[int]:
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

    def evaluating(self, clients: Collection[int]) -> None:
        self._evaluating = set(clients)

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

    def validate_population(self, num_clients: int) -> None:
        require(
            self.buffer_size <= num_clients,
            "algorithm.schedule.buffer_size",
            self.buffer_size,
            f"at most num_clients={num_clients}",
            "the server would wait for ever",
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "used": self._used,
            "present": self._present,
            "ordered": self._ordered,
            "failed": self._failed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._used, self._present = set(state["used"]), state["present"]
        self._ordered, self._failed = set(state["ordered"]), set(state["failed"])

    def _left(self, arrived: set[int]) -> float:
        """How many clients' turns are still to come in this round."""
        # A client that left after its turn is counted as used and not as present. The round then
        # ends without a client that is still at work; otherwise it would never end.
        return self._present - len(self._used) - len(self._failed - self._used - arrived)
