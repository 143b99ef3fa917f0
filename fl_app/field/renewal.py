"""A SuperNode that renews itself: it takes updates while it runs, and puts them on trial.

Once an update is installed beside it, the SuperNode ends between two orders. Whoever keeps it
running starts it again, in the new environment (`fl_app.field.versions`). If the first order there
fails, or has no end, the SuperNode goes back and ends once more.
"""

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fl_app.core.errors import require
from fl_app.field.updates import READY
from fl_app.field.versions import Versions
from fl_app.flower.private import RUN_HAS_ENDED, difference, watch_replies

log = logging.getLogger("flwr")

# Variables: the device's folder, seconds between two looks, and of the first order at the most.
KIT, EVERY, TRIAL = "FL_APP_KIT", "UPDATE_EVERY", "UPDATE_TRIAL"
LONGEST = "3600"
COMMAND = (sys.executable, "-m", "fl_app.field.updates")
ORDERS = ("train", "evaluate")  # types of messages that put an environment to the proof


class Renewal:
    """Updates of a running SuperNode.

    Args:
        kit: the device's folder.
        every: seconds between two looks for an update.
        greet: tells the server which release is in use.
        look: installs an update; returns whether another environment is to be used.
        end: ends the SuperNode.
        pause: waits for a number of seconds.
        longest: seconds that the first order of a release may take.
        now: returns the seconds on a clock.
    """

    def __init__(
        self,
        kit: Path,
        every: float,
        greet: Callable[[], object] = lambda: None,
        look: Callable[[Path], bool] | None = None,
        end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
        pause: Callable[[float], None] = time.sleep,
        longest: float = float(LONGEST),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kit, self._every, self._greet, self._end = kit, every, greet, end
        self._look = look or _look
        self._pause, self._longest, self._now = pause, longest, now
        self._busy: float | None = None  # since when an order is under way
        self._versions = Versions(kit)
        self._thread: threading.Thread | None = None
        self._due = False  # another environment is to be used
        self._trial = self._versions.record.trial

    def begin(self, differs: bool) -> bool:
        """Prepare this process, before the SuperNode runs.

        Args:
            differs: whether the server has another version of this project.

        Returns:
            Whether another environment is to be used, at once.
        """
        if self._trial and (found := difference("sent")):
            log.warning("release %d cannot be tried: %s", self._trial, found)
            self._confirm()
        elif self._trial:
            log.info("release %d is on trial until it has carried out an order", self._trial)
            watch_replies(self.replied)
        if found := difference("orders"):
            log.warning("updates are looked for only before the SuperNode runs: %s", found)
            return self._look(self._kit)
        return differs and self._look(self._kit)

    def replied(self, kind: str, problem: str) -> None:
        """Judge the release on trial by a reply that was sent.

        Args:
            kind: type of the message.
            problem: reason of its error; "" = it has none.
        """
        if not self._trial or problem == RUN_HAS_ENDED:
            return
        if problem:
            self._give_up(problem)
        elif kind.partition(".")[0] in ORDERS:
            log.info("release %d has carried out an order, and stays", self._trial)
            self._confirm()

    def beside(self, busy: bool) -> None:
        """Called again and again: look for updates, and end between two orders if another is due.

        Args:
            busy: whether an order is under way.
        """
        if busy:
            self._wait_for_trial()
            return
        self._busy = None
        if self._due:
            log.info("another release is used: the SuperNode ends, and is started again")
            self._due = False
            self._end()
        elif self._thread is None:  # not earlier: processes are forked before there are threads
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def _wait_for_trial(self) -> None:
        """End at once if the first order of a release has no end: no reply will come."""
        self._busy = self._now() if self._busy is None else self._busy
        if self._trial and self._now() - self._busy > self._longest:
            self._give_up(f"no reply to an order within {self._longest:g} s")
            self._due = False
            self._end()

    def _give_up(self, reason: str) -> None:
        log.warning("release %d fails: %s; the one before is used", self._trial, reason)
        self._versions.give_up(reason)
        self._trial, self._due = 0, True

    def _confirm(self) -> None:
        self._versions.confirm()
        self._trial = 0

    def _watch(self) -> None:
        # All devices of a fleet may have been started at the same time.
        self._pause(random.uniform(0.0, self._every))
        while not self._due:
            try:
                self._greet()
                self._due = not self._trial and self._look(self._kit)
            except OSError as error:  # no memory for a process, or no file can be opened
                log.warning("no update was looked for: %s", error)
            if not self._due:
                self._pause(self._every)


def renewal_of(
    environment: Mapping[str, str], greet: Callable[[], object] = lambda: None
) -> Renewal | None:
    """The renewal that the settings ask for; None if they do not.

    Args:
        environment: of ``start.sh``.
        greet: as of `Renewal`.

    Raises:
        ValueError: UPDATE_EVERY or UPDATE_TRIAL is not a whole number of seconds.
    """
    kit, every = environment.get(KIT, ""), environment.get(EVERY) or "0"
    longest = environment.get(TRIAL) or LONGEST
    require(
        every.isdecimal(),
        EVERY,
        every,
        "a whole number of seconds, or 0 for never",
        "the device would not know when to look for an update",
    )
    require(
        longest.isdecimal() and int(longest) > 0,
        TRIAL,
        longest,
        "a whole number of seconds above 0",
        "every update would fail",
    )
    if not kit or not int(every):
        return None
    return Renewal(Path(kit), float(every), greet, longest=float(longest))


def _look(kit: Path) -> bool:
    return subprocess.run([*COMMAND, str(kit)], stdin=subprocess.DEVNULL).returncode == READY
