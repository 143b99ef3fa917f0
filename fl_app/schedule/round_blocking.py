"""Rounds that stragglers of earlier rounds may join late."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fl_app.core.hyper import COUNT, bounded
from fl_app.core.pool import ClientPool
from fl_app.core.types import Rng, Updates
from fl_app.schedule.base import Attentive, Ids, not_waiting


@dataclass(eq=False)
class RoundBlocking(Attentive):
    """K-asynchronous in rounds: every client's update is taken once before any is taken again.

    GSGM's schedule (Li et al. 2019). All clients are at work, participants restart after the
    aggregation. A client's second update in a round waits for the next round. Fewer than K
    updates wait too, unless no other client is left in the round. No round waits for a client that
    is offline or whose last order brought nothing.

    Args:
        buffer_size: K.

    Raises:
        ValueError: a value is out of its bounds.
    """

    buffer_size: int = bounded(10, COUNT, "the server would make versions out of nothing")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._used: set[int] = set()  # in this round
        self._present: float = math.inf  # clients that are idle, at work or evaluating
        self._failed: set[int] = set()  # those of them whose last order brought nothing

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        """Idle clients whose update does not wait for the aggregation."""
        at_work = {*busy, *self._evaluating}
        self._present = len(idle) + len(at_work)
        self._failed = {c for c in self._failing if c in idle or c in at_work}
        return not_waiting(idle, buffer)

    def take(self, buffer: Updates) -> Updates:
        """The first K updates of clients that the round has not used yet; it marks them as used."""
        arrived = {update.client_id for update in buffer}
        if self._remaining(arrived) <= 0:
            self._used = set()
        eligible = [update for update in buffer if update.client_id not in self._used]
        if len(eligible) < min(self.buffer_size, self._remaining(arrived)):
            return ()
        updates = eligible[: self.buffer_size]
        clients = {update.client_id for update in updates}
        self._used |= clients
        self._failed -= clients
        return updates

    def _remaining(self, arrived: set[int]) -> float:
        """How many clients' turns are still to come in this round."""
        # A client that left after its turn is counted as used and not as present. The round then
        # ends without a client that is still at work; otherwise it would never end.
        return self._present - len(self._used) - len(self._failed - self._used - arrived)
