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
        self._began: dict[int, float] = {}  # clients at work -> when their order was given
        self._seen: set[int] = set()  # orders whose update waits

    def wake(self, now: float) -> float:
        self._now = now
        return self.due()

    def due(self) -> float:
        """When updates may be taken although nothing else happens; inf = never."""
        raise NotImplementedError

    def note(self, busy: Ids, begin: Collection[int]) -> None:
        """Note the clients that are at work from now on."""
        self._began = {client_id: self._began.get(client_id, self._now) for client_id in busy}
        self._began |= dict.fromkeys(begin, self._now)

    def arrivals(self, buffer: Updates) -> list[Update]:
        """Updates that were not in the buffer before; it is now when the last of them arrived."""
        new = [update for update in buffer if update.order not in self._seen]
        self._seen = {update.order for update in buffer}
        for update in new:
            began = self._began.pop(update.client_id, None)
            if began is not None:
                self._now = max(self._now, began + update.seconds)
        return new
