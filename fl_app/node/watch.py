"""A SuperNode's watch over the order that is under way, so that no order occupies it for ever.

Flower's SuperNode carries out one order at a time and waits for its reply without limit. If the run
ends meanwhile, because its ServerApp or its SuperLink died, two things may happen:

- The ClientApp goes on training for nobody, and the next order waits for it.
- The order's parts stop coming. The SuperNode gives the order up, and forgets to end its task: a
  ClientApp waits in `pull_task_input` for parts that nobody has.
"""

import logging
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import psutil

from fl_app.flower.private import Waiting, has_ended, waiting

log = logging.getLogger("flwr")

ASK_EVERY = 10.0  # seconds between two questions whether a run goes on
SETTLE = 30.0  # seconds
GRACE = 5.0  # seconds from SIGTERM to SIGKILL
CLIENT_APP = "flwr-clientapp"


class Watch:
    """Asks the server whether the run of the order under way goes on, and drops the order if not.

    Args:
        end: ends the ClientApps of this node.
        every: seconds between two questions.
        settle: seconds without an order, after which no ClientApp can be writing its context.
        now: returns the seconds on a clock.
        beside: called again and again, with whether an order is under way.
    """

    def __init__(
        self,
        end: Callable[[], None],
        every: float = ASK_EVERY,
        settle: float = SETTLE,
        now: Callable[[], float] = time.monotonic,
        beside: Callable[[bool], None] = lambda busy: None,
    ) -> None:
        self._end, self._every, self._settle, self._now = end, every, settle, now
        self._beside = beside
        self._asked: float | None = None  # since when the order is under way, or was asked about
        self._idle: float | None = None  # since when there is none

    def look(self, frame: FrameType) -> None:
        """Look after the order for which a function of the SuperNode waits.

        Args:
            frame: of the function, which sleeps now.
        """
        found = waiting(frame)
        if found is None:
            return
        self._beside(found.run_id is not None)
        now = self._now()
        if found.run_id is None:
            self._asked = None
            self._idle = now if self._idle is None else self._idle
            if now - self._idle >= self._settle:
                self._clear(found)
            return
        self._idle = None
        self._clear(found)
        if self._asked is None:
            self._asked = now
        elif now - self._asked >= self._every:
            self._asked = now
            self._ask(found)

    def _clear(self, found: Waiting) -> None:
        """Forget orders of other runs; their ClientApps are refused then, and end."""
        if found.clear():
            log.warning("a task of an order that was given up was left: it is ended")

    def _ask(self, order: Waiting) -> None:
        if has_ended(order):
            log.warning(
                "run %d has ended: its order is dropped, and its ClientApp ended", order.run_id
            )
            self._asked = None
            order.drop()
            self._end()


def end_client_apps() -> None:
    """End the ClientApps that descend from this process, with SIGTERM and then SIGKILL."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(CLIENT_APP in word for word in process.cmdline()[:3]):
                found.append(process)
    for ending in (signal.SIGTERM, signal.SIGKILL):
        for process in found:
            with suppress(psutil.Error):
                process.send_signal(ending)
        _, found = psutil.wait_procs(found, timeout=GRACE)
