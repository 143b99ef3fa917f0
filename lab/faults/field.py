"""A federation on one machine whose processes are kept running, and a run on it."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from fl_app.core.events import Arrived, Event
from fl_app.field.runs import Supervisor
from fl_app.record.log import read_events
from lab.demo import Disappointed, Federation, wait_for

APP = Path(__file__).with_name("app")
NODES = 5
SECONDS = 8.0  # of an order: long enough that clients' rates do not depend on the processor
PATIENCE = 240.0  # seconds to wait for anything
REBIRTH = 20.0  # seconds that a server which is started anew takes at least


class Field(Federation):
    """A federation whose processes are started again when they end; every node has a link.

    A supervisor in a thread submits its run until that has ended.

    Args:
        folder: a new one.
        overrides: of the run, as of ``python -m fl_app``.

    Attributes:
        output: folder of the run.
        supervisor: of the run.
    """

    _start = 'trap exit TERM; while :; do sh "$0"; sleep 10; done'

    def __init__(self, folder: Path, overrides: Sequence[str]) -> None:
        super().__init__(folder, NODES, limit=math.inf, app=APP, linked=True)
        self.output = self.folder / "run"
        self._offset = math.inf  # the run's second 0 on this machine's clock
        self._newest = -1.0  # seconds of the newest event
        self._problem: BaseException | None = None
        self.supervisor = Supervisor(self.link, pause=self.wait)

        def complete() -> None:
            try:
                self.supervisor.complete(overrides, self.output)
            except BaseException as error:  # raised in the main thread
                self._problem = error

        self._thread = threading.Thread(target=complete, daemon=True)

    def begin(self) -> None:
        """Start all processes and the run, and wait until every node has answered."""
        self.start([f"wait={SECONDS}"] * NODES)
        self._thread.start()

        def answered() -> bool:
            return len({e.client for e in self.events() if isinstance(e, Arrived)}) == NODES

        self.until(answered, "every node has answered")

    def processes(self, where: str, name: str) -> list[psutil.Process]:
        """Processes of ``server`` or ``node-<i>`` whose command line holds `name`."""
        home = str(self.folder / "kit" / where / "flower")
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if (
                    any(name in word for word in process.cmdline())
                    and process.environ().get("FLWR_HOME") == home
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found

    def events(self) -> list[Event]:
        """The event log so far."""
        events = list(read_events(self.output / "events.jsonl"))
        if events and events[-1].t != self._newest:
            self._newest = events[-1].t
            offset = time.monotonic() - self._newest
            # The clock of a run stands still until its server is back.
            self._offset = offset if offset > self._offset + REBIRTH else min(self._offset, offset)
        return events

    def now(self) -> float:
        """Seconds on the run's clock."""
        self.events()
        return time.monotonic() - self._offset

    def until(self, true: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Wait until a condition is true.

        Raises:
            Disappointed: it is not true in time, or the run failed.
        """

        def settled() -> bool:
            self.events()
            if true():
                return True
            if not self._thread.is_alive():
                raise Disappointed(f"the run ended before {what}: {self._problem}")
            return False

        wait_for(settled, what, seconds)

    def finish(self, seconds: float) -> None:
        """Wait for the end of the run.

        Raises:
            Disappointed: the run failed, or takes longer.
        """
        self.until(lambda: not self._thread.is_alive(), "the run ends", seconds)
        if self._problem:
            raise Disappointed(f"the run failed: {self._problem}")
