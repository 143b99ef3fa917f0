"""The base of schedules that depend on the time and on the seconds that orders took."""

from collections.abc import Collection

from fl_app.core.types import Update, Updates
from fl_app.schedule.base import Ids, Schedule


class Timed(Schedule):
    """Knows the time and which clients are at work, and sees every arrival once.

    A subclass calls `note` at the end of `start` and `arrivals` at the beginning of `take`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._now = 0.0
        self._at_work: set[int] = set()  # clients
        self._seen: set[int] = set()  # orders whose update waits

    def tell_time(self, now: float) -> None:
        self._now = now

    def wake(self, now: float) -> float:
        self._now = now
        return self.due()

    def due(self) -> float:
        """When updates may be taken although nothing else happens; inf = never."""
        raise NotImplementedError

    def note(self, busy: Ids, begin: Collection[int]) -> None:
        """Note the clients that are at work from now on."""
        self._at_work = {*busy, *begin}

    def arrivals(self, buffer: Updates) -> list[Update]:
        """Updates that were not in the buffer before."""
        new = [update for update in buffer if update.order not in self._seen]
        self._seen = {update.order for update in buffer}
        self._at_work -= {update.client_id for update in new}
        return new
