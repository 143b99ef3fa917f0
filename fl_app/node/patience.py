"""A limit on a SuperNode's wait for the content of a reply."""

import sys
import time
from collections.abc import Callable
from types import FrameType

from fl_app.flower.private import awaited_part

LIMIT = 120.0  # seconds for one part; it is handed over on loopback


class Patience:
    """Sleeps for a SuperNode, and gives up a reply whose content does not come.

    A ClientApp first announces its reply and then hands over the parts of it. If it is killed in
    between, Flower's SuperNode waits for ever, and carries out no further order. The error of
    `sleep` makes it drop this reply.

    Args:
        sleep: sleeps for a number of seconds.
        limit: seconds that one part of a reply may take.
        now: returns the seconds on a clock.
        look: is given the frame of the function that sleeps, before it does.
    """

    def __init__(
        self,
        sleep: Callable[[float], None],
        limit: float = LIMIT,
        now: Callable[[], float] = time.monotonic,
        look: Callable[[FrameType], None] = lambda frame: None,
    ) -> None:
        self._sleep, self._limit, self._now, self._look = sleep, limit, now, look
        self._part: str | None = None
        self._since = 0.0

    def sleep(self, seconds: float) -> None:
        """Replace `time.sleep` of Flower's SuperNode.

        Raises:
            TimeoutError: the caller has waited for the same part longer than `limit`.
        """
        frame = sys._getframe(1)
        self._look(frame)
        part = awaited_part(frame)
        if part is None or part != self._part:
            self._part, self._since = part, self._now()
        elif self._now() - self._since > self._limit:
            self._part = None
            raise TimeoutError(
                f"its content did not come within {self._limit:g} s: its ClientApp was killed"
            )
        self._sleep(seconds)
