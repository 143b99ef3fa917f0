"""The server's own work under the virtual clock: how long it takes, and what waits for it."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fl_app.core.hyper import NON_NEGATIVE, Checked, bounded
from fl_app.core.snapshot import Remembers

Work: TypeAlias = Literal["dispatch", "receipt", "aggregation", "evaluation"]


@dataclass(kw_only=True, eq=False)
class Server(Remembers, Checked):
    """A server whose work takes seconds.

    The server is one loop. It looks for replies, handles those that have come, sleeps for `poll`
    seconds, and looks again. A reply that comes while the server works or sleeps waits for the next
    look. Each dispatch of an order, receipt of a reply, aggregation and evaluation stops the loop.

    Every duration is constant. So what happens follows from the sequence of events alone.

    Args:
        dispatch: seconds until an order has left the server, >= 0.
        receipt: seconds from the look that finds a reply until its update can be used, >= 0.
        aggregation: seconds of an aggregation, >= 0.
        evaluation: seconds of an evaluation on the server, >= 0.
        poll: seconds between two looks of an idle server, >= 0; 0 = it sees replies at once.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "devices.server"

    dispatch: float = bounded(0.0, NON_NEGATIVE, "the server would end before it began")
    receipt: float = bounded(0.0, NON_NEGATIVE, "the server would end before it began")
    aggregation: float = bounded(0.0, NON_NEGATIVE, "the server would end before it began")
    evaluation: float = bounded(0.0, NON_NEGATIVE, "the server would end before it began")
    poll: float = bounded(0.0, NON_NEGATIVE, "time would run backwards")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._free = 0.0  # when the loop has done its work
        self._last_look = 0.0  # when it last looked for replies

    def work(self, what: Work, now: float) -> float:
        """Do a piece of work at `now`, seconds; returns when the loop goes on."""
        self._free = max(self._free, now) + getattr(self, what)
        return self._free

    def begins(self, arrival: float) -> float:
        """When the server begins to receive the reply that arrives next, seconds."""
        if not self.poll or arrival <= self._last_look:  # the last look found it
            return max(self._free, arrival)
        since = max(self._free, self._last_look)
        looks = max(1, math.ceil((arrival - since) / self.poll))
        return max(since + looks * self.poll, arrival)

    def receive(self, arrival: float) -> float:
        """Receive the reply that arrives next; returns when it can be used, seconds."""
        begins = self.begins(arrival)
        if arrival > self._last_look:
            self._last_look = begins
        return self.work("receipt", begins)
