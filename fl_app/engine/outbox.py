"""Events on their way to the sinks."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from fl_app.core.events import Evaluated, Event, Sink


class Measurement(Protocol):
    """A test of a version that goes on beside the engine."""

    def done(self) -> bool:
        """Whether `result` returns at once."""
        ...

    def result(self) -> Mapping[str, float]:
        """The metrics; waits for them."""
        ...


class Outbox:
    """Sends events to the sinks in their order.

    While a version is measured, its evaluation and all events behind it are held back. The sinks
    receive the same events as if the engine had waited.

    Args:
        sinks: receive the events; the list may grow.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._awaited: tuple[float, int, Measurement] | None = None
        self._held: deque[Event] = deque()

    def emit(self, event: Event) -> None:
        """Send an event, or hold it back."""
        if self._awaited is None:
            self._send(event)
            return
        self._held.append(event)
        if self._awaited[2].done():
            self.settle()

    def emit_later(self, seconds: float, version: int, measurement: Measurement) -> None:
        """Send an evaluation at this place in the sequence of events, when it is measured."""
        self.settle()
        self._awaited = seconds, version, measurement

    def settle(self) -> None:
        """Send all events; waits for the measurement.

        What the measurement raises is raised after the other events were sent.
        """
        if self._awaited is None:
            return
        seconds, version, measurement = self._awaited
        try:
            metrics = measurement.result()
        except Exception:
            self._awaited = None
            self._send_held()
            raise
        self._awaited = None
        self._send(Evaluated(seconds, version, metrics))
        self._send_held()

    def _send_held(self) -> None:
        while self._held:
            self._send(self._held.popleft())

    def _send(self, event: Event) -> None:
        for sink in self._sinks:
            sink.emit(event)
