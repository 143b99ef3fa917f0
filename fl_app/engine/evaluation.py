"""Measurements of versions beside the engine, and the events that wait for them."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from fl_app.core.errors import RunError
from fl_app.core.events import Evaluated, Event, Sink
from fl_app.core.types import Order, Reply, Vector
from fl_app.engine.clock import Mailbox

log = logging.getLogger(__name__)

SERVER = -1  # in place of a client


class Background:
    """Measures versions of the model in another process, one at a time.

    It is called like a function that measures.

    Args:
        mailbox: of one worker, which measures the model of an evaluate order.
        instead: measures where the worker could not; None = the run ends.
    """

    def __init__(
        self, mailbox: Mailbox, instead: Callable[[int, Vector], Mapping[str, float]] | None
    ) -> None:
        self._mailbox = mailbox
        self._instead = instead

    def __call__(self, version: int, vector: Vector) -> "Background":
        """Begin with a version; the one before is measured."""
        self._order = Order(version, SERVER, 0, version, vector, {}, 0.0, evaluates=True)
        self._reply: Reply | None = None
        self._mailbox.push(self._order)
        return self

    def done(self) -> bool:
        """Whether `result` returns at once."""
        self._look(0.0)
        return self._reply is not None

    def result(self) -> Mapping[str, float]:
        """The metrics; waits for them.

        Raises:
            RunError: the version could not be measured.
        """
        while self._reply is None:
            self._look(None)
        if self._reply.scores is not None:
            return self._reply.scores.metrics
        version, reason = self._order.base_version, self._reply.error
        if self._instead is None:
            raise RunError(f"version {version} could not be evaluated: {reason}")
        log.warning("version %s is evaluated in the main process: %s", version, reason)
        return self._instead(version, self._order.vector)

    def close(self) -> None:
        """End the process at once."""
        self._mailbox.close()

    def _look(self, timeout: float | None) -> None:
        if self._reply is None:
            for reply in self._mailbox.pull(timeout):
                assert isinstance(reply, Reply)
                self._reply = reply


Evaluate: TypeAlias = Callable[[int, Vector], Mapping[str, float] | Background]


class Outbox:
    """Sends events to the sinks in their order.

    While a version is measured, its evaluation and all events behind it are held back. The sinks
    receive the same events as if the engine had waited.

    Args:
        sinks: receive the events; the list may grow.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._awaited: tuple[float, int, Background] | None = None
        self._held: deque[Event] = deque()

    def emit(self, event: Event) -> None:
        """Send an event, or hold it back."""
        self._held.append(event)
        if self._awaited is None or self._awaited[2].done():
            self.settle()

    def emit_later(self, seconds: float, version: int, measurement: Background) -> None:
        """Send an evaluation at this place in the sequence of events, when it is measured."""
        self._awaited = seconds, version, measurement

    def settle(self) -> None:
        """Send all events; waits for the measurement.

        What the measurement raises is raised after the other events were sent.
        """
        try:
            if self._awaited is not None:
                seconds, version, measurement = self._awaited
                self._held.appendleft(Evaluated(seconds, version, measurement.result()))
            self._awaited = None
        except Exception:
            self._awaited = None
            self.settle()
            raise
        while self._held:
            event = self._held.popleft()
            for sink in self._sinks:
                sink.emit(event)
