"""Rounds in which all clients report, and then each of them makes one version."""

from collections.abc import Sequence
from dataclasses import dataclass

from fl_app.core.pool import ClientPool
from fl_app.core.types import Rng, Updates
from fl_app.schedule.base import Attentive, Ids


@dataclass(eq=False)
class TwoPhase(Attentive):
    """Rounds of N versions, with all N clients at work all the time.

    Ringleader's schedule (arXiv:2509.22860). Phase 1 waits until all clients have reported, and
    takes all updates, several of fast clients. They make the version of the client that arrived
    last. In phase 2 the next update of each other client makes a version. Further updates wait for
    the next round, and are kept one by one. No phase waits for a client that is offline or whose
    last order brought nothing.
    """

    def __post_init__(self) -> None:
        self._awaited: set[int] = set()  # clients that are present and do not fail
        self._left: set[int] = set()  # those of this round that have not made a version

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        self._awaited = {*idle, *busy, *self._evaluating} - {*self._failing}
        return [*idle]

    def take(self, buffer: Updates) -> Updates:
        for update in buffer:
            if update.client_id in self._left:
                self._left.remove(update.client_id)
                return [update]
        reported = {update.client_id for update in buffer}
        if not buffer or self._left & self._awaited or self._awaited - reported:
            return ()
        self._left = reported - {buffer[-1].client_id}
        return buffer
