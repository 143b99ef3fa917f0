"""A federation on one machine whose processes are kept running; every node has a link."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from fl_app.core.errors import RunError
from fl_app.core.events import Arrived, Event
from fl_app.field.runs import Supervisor
from fl_app.record.log import read_events
from lab.demo import Disappointed, Federation, wait_for
from lab.faults.link import Link

APP = Path(__file__).with_name("app")
NODES = 5
PATIENCE = 240.0  # seconds to wait for anything


class Field(Federation):
    """A federation whose processes are started again when they end; every node has a link.

    Args:
        folder: a new one.

    Attributes:
        links: to the SuperLink, of every node.
    """

    _start = 'trap exit TERM; while :; do sh "$0"; sleep 10; done'

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, NODES, limit=math.inf, app=APP)
        port = int(self.kit.address.rpartition(":")[2])
        self.links = [Link(port) for _ in range(NODES)]
        self.leaving = threading.Event()

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

    def mend(self) -> None:
        """Remove the faults of every link."""
        for link in self.links:
            link.restore()

    def stop(self) -> bool:
        """End all processes and links; return whether no process is left."""
        self.leaving.set()
        ended = super().stop()
        for link in self.links:
            link.close()
        return ended

    def pause(self, seconds: float) -> None:
        """Sleep, unless the federation is being ended.

        Raises:
            RunError: it is.
        """
        if self.leaving.wait(seconds):
            raise RunError("the federation is being ended")


class Run:
    """A run under a supervisor in a thread, which submits it until it has ended.

    Args:
        field: in which it runs.
        overrides: as of ``python -m fl_app``.
        output: folder of the run.
    """

    def __init__(self, field: Field, overrides: Sequence[str], output: Path) -> None:
        self.field = field
        self.output = output
        self._offset = float("inf")  # the run's second 0 on this machine's clock
        self._problems: list[BaseException] = []
        self._told = ""
        supervisor = Supervisor(field.link, pause=field.pause, tell=self._tell)

        def complete() -> None:
            try:
                supervisor.complete(overrides, output)
            except BaseException as error:  # raised in the main thread
                self._problems.append(error)

        self._thread = threading.Thread(target=complete, daemon=True)
        self._thread.start()
        self.until(lambda: any(isinstance(e, Arrived) for e in self.events()), "an update arrives")

    def events(self) -> list[Event]:
        """The event log so far."""
        events = list(read_events(self.output / "events.jsonl"))
        if events:
            self._offset = min(self._offset, time.monotonic() - events[-1].t)
        return events

    def now(self) -> float:
        """Seconds on the run's clock."""
        self.events()
        return time.monotonic() - self._offset

    def answered(self) -> set[int]:
        """Clients with at least one arrived update."""
        return {event.client for event in self.events() if isinstance(event, Arrived)}

    def submitted(self) -> int:
        """How often the supervisor has submitted the run."""
        return self._told.count(" submitted: ")

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
                raise Disappointed(f"the run ended before {what}: {self._problems}")
            return False

        wait_for(settled, what, seconds)

    def wait(self, seconds: float) -> None:
        """Wait for so many seconds, or until the run ends."""
        until = time.monotonic() + seconds
        with suppress(Disappointed):
            self.until(lambda: time.monotonic() > until, "time has passed")

    def finish(self) -> None:
        """Wait for the end of the run.

        Raises:
            Disappointed: the run failed, or its log does not grow any more.
        """
        known, since = 0, time.monotonic()
        while self._thread.is_alive():
            self._thread.join(1.0)
            if (told := len(self.events())) != known:
                known, since = told, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise Disappointed(f"nothing happened for {PATIENCE:g} s")
        if self._problems:
            raise Disappointed(f"the run failed: {self._problems[0]}")

    def _tell(self, text: str) -> None:
        self._told += text + "\n"
        print(f"  {text}", flush=True)
