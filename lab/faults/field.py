"""A federation on one machine that restarts its processes, and a run on it."""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from fl_app.core.errors import RunError
from fl_app.core.events import Event
from fl_app.field.runs import Supervisor
from fl_app.record.history import History, OrderRecord
from fl_app.record.log import read_events
from lab.demo import Federation, wait_for

APP = Path(__file__).with_name("app")
NODES = 5
SECONDS = 8.0  # of an order: long enough that clients' rates do not depend on the processor
PATIENCE = 240.0  # seconds to wait for anything


class Field(Federation):
    """A federation whose processes are started again when they end; every node has a link.

    A supervisor in a thread submits the run until it has ended.

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
        self.until(lambda: len(self.history().arrivals) == NODES, "every node has answered")

    def processes(self, role: str, name: str) -> list[psutil.Process]:
        """Processes of ``server`` or ``node-<i>`` whose command line holds `name`."""
        matches = []
        for process in psutil.Process(self._processes[role].pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if any(name in word for word in process.cmdline()):
                    matches.append(process)
        return matches

    def events(self) -> list[Event]:
        """The event log so far."""
        return list(read_events(self.output / "events.jsonl"))

    def history(self) -> History:
        """The history of the event log so far."""
        history = History(keep_orders=True)
        for event in self.events():
            history.emit(event)
        return history

    def orders(self, client: int) -> list[OrderRecord]:
        """The orders of one client so far, in the sequence in which they were given."""
        return [order for order in self.history().orders if order.client == client]

    def until(self, condition: Callable[[], bool], event: str, seconds: float = PATIENCE) -> None:
        """Wait until a condition is true.

        Raises:
            RunError: it is not true in time, or the run failed.
        """

        def check() -> bool:
            if condition():
                return True
            if not self._thread.is_alive():
                raise RunError(f"the run ended before {event}: {self._problem}")
            return False

        wait_for(check, event, seconds)

    def finish(self, seconds: float) -> None:
        """Wait for the end of the run.

        Raises:
            RunError: the run failed, or takes longer.
        """
        self.until(lambda: not self._thread.is_alive(), "the run ends", seconds)
        if self._problem:
            raise RunError(f"the run failed: {self._problem}")
