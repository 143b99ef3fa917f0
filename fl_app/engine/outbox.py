"""Sends events to the sinks; they wait while a version is being evaluated."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from fl_app.core.events import Evaluated, Event, Sink
from fl_app.core.types import Vector

Metrics: TypeAlias = Mapping[str, float]
# The vector may be another one when a future is done.
Evaluate: TypeAlias = Callable[[int, Vector], Metrics | Future[Metrics]]


class Outbox:
    """Sends events to the sinks in their order.

    While a version is measured, its evaluation and all events behind it are held back. The sinks
    receive the same events as if the engine had waited.

    Args:
        sinks: receive the events; the list may grow.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._awaited: tuple[float, int, Future[Metrics]] | None = None
        self._held: deque[Event] = deque()

    def emit(self, event: Event) -> None:
        """Send an event, or hold it back."""
        self._held.append(event)
        if self._awaited is None or self._awaited[2].done():
            self.settle()

    def emit_later(self, seconds: float, version: int, future: Future[Metrics]) -> None:
        """Send an evaluation at this place in the sequence of events, once it is measured."""
        self._awaited = seconds, version, future

    def settle(self) -> None:
        """Send all events; waits for the measurement.

        What the measurement raises is raised after the other events were sent.
        """
        try:
            if self._awaited is not None:
                seconds, version, future = self._awaited
                self._held.appendleft(Evaluated(seconds, version, future.result()))
            self._awaited = None
        except Exception:
            self._awaited = None
            self.settle()
            raise
        while self._held:
            event = self._held.popleft()
            for sink in self._sinks:
                sink.emit(event)
