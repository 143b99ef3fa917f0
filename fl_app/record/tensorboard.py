"""Shows a run in TensorBoard while it goes on (``tensorboard --logdir <run folder>``)."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fl_app.core.errors import is_number
from fl_app.core.events import (
    Aggregated,
    Arrived,
    ClientsEvaluated,
    Dispatched,
    Evaluated,
    EvaluationOrdered,
    Event,
    Failed,
    Rejected,
)
from fl_app.core.extras import told_if_missing
from fl_app.record.history import History

POINT_EVERY = 1.0  # wall seconds between points at least, except for evaluations
WHO_EVERY = 10.0  # wall seconds between tables of the clients
MAX_CLIENTS = 100  # rows of such a table

Clients = tuple[Collection[int], Collection[int]]


class Writer(Protocol):
    """The methods of ``torch.utils.tensorboard.SummaryWriter`` that are used."""

    def add_scalar(self, tag: str, value: float, step: int, walltime: float) -> None: ...
    def add_text(self, tag: str, text: str, step: int, walltime: float) -> None: ...
    def close(self) -> None: ...


@dataclass
class _Mean:
    """Mean and maximum of the numbers since the last point."""

    total: float = 0.0
    count: int = 0
    most: float = -math.inf

    def add(self, value: Any) -> None:
        if is_number(value):
            self.total += value
            self.count += 1
            self.most = max(self.most, value)


class _Last(NamedTuple):
    """The last event of a client."""

    t: float = 0.0
    text: str = ""


class TensorBoard:
    """Sink that writes TensorBoard's event files: steps are versions, times those of the run.

    There is a point for every evaluation. Between evaluations there is at most one a second of real
    time, with means over what happened since the last point: a fast simulated run is not slowed
    down. Tags:

    - ``test/...``: metrics of the evaluations;
    - ``on_clients/...``: mean, standard deviation and worst decile of the evaluations on clients;
    - ``clients/loss``, ``clients/staleness``, ``clients/staleness_max``: of updates;
    - ``clients/online``, ``clients/in_flight``: numbers of clients;
    - ``clients/who``: a table of the clients, as text, if there are at most `MAX_CLIENTS`;
    - ``total/...``: arrivals, failures, rejects, and what `more` gives, such as bytes;
    - ``strategy/...``: numbers that the strategy reports of its aggregations, or the mean of a
      list.

    Args:
        folder: for the files.
        history: of the run; takes in every event before this sink does.
        clients: gives the clients that are idle, and those that work on an order.
        more: gives further totals by name.
        wall: seconds of the wall clock.
        began: seconds since 1970 that stand for the start of the run's clock; None = now.
        writer: makes the writer; default TensorBoard's.
    """

    def __init__(
        self,
        folder: Path,
        history: History,
        clients: Callable[[], Clients],
        more: Callable[[], Mapping[str, float]] = dict,
        *,
        wall: Callable[[], float] = time.monotonic,
        began: float | None = None,
        writer: Callable[[Path], Writer] | None = None,
    ) -> None:
        self._folder = folder
        self._history = history
        self._clients = clients
        self._more = more
        self._wall = wall
        self._began = time.time() if began is None else began
        self._make = _summary_writer if writer is None else writer
        self._writer: Writer | None = None
        self._due = self._who_due = -math.inf
        self._means: dict[str, _Mean] = {}
        self._last: dict[int, _Last] = {}  # by client

    def emit(self, event: Event) -> None:
        """Take in one event, and write a point if it is time."""
        match event:
            case EvaluationOrdered():
                self._last[event.client] = _Last(event.t, f"evaluates version {event.version}")
            case ClientsEvaluated():
                for key, value in event.metrics.items():
                    self._scalar(f"on_clients/{key}", value, event.version)
            case Dispatched():
                self._last[event.client] = _Last(event.t, f"order, version {event.version}")
            case Arrived():
                self._mean("clients/loss").add(event.loss)
                loss = "" if event.loss is None else f", loss {event.loss:.4g}"
                self._last[event.client] = _Last(event.t, f"update{loss}")
            case Failed() | Rejected():
                if event.client is not None:
                    self._last[event.client] = _Last(event.t, f"{event.kind}: {event.reason}")
            case Aggregated():
                self._aggregate(event)
            case Evaluated():
                for key, value in event.metrics.items():
                    self._scalar(f"test/{key}", value)
        if isinstance(event, Evaluated) or self._wall() >= self._due:
            self._point()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._who_due = -math.inf
            self._point()
            self._writer.close()
            self._writer = None

    def _aggregate(self, event: Aggregated) -> None:
        for age in event.age:
            self._mean("clients/staleness").add(age)
        for key, value in event.report.items():
            if isinstance(value, list):
                numbers = _Mean()
                for each in value:
                    numbers.add(each)
                value = numbers.total / numbers.count if numbers.count else None
            self._mean(f"strategy/{key}").add(value)

    def _point(self) -> None:
        for tag, mean in self._means.items():
            if mean.count:
                self._scalar(tag, mean.total / mean.count)
                if tag == "clients/staleness":
                    self._scalar("clients/staleness_max", mean.most)
        self._means.clear()
        history = self._history
        totals = {
            "arrivals": history.client_updates,
            "failures": history.failures,
            "rejects": history.rejected,
        }
        for key, value in {**totals, **self._more()}.items():
            self._scalar(f"total/{key}", value)
        idle, busy = self._clients()
        self._scalar("clients/online", len(idle) + len(busy))
        self._scalar("clients/in_flight", len(busy))
        now = self._wall()
        if now >= self._who_due:
            if len(self._last) <= MAX_CLIENTS and len(idle) <= MAX_CLIENTS:
                text = self._who(idle, busy)
                walltime = self._began + history.t
                self._open().add_text("clients/who", text, history.version, walltime)
            self._who_due = now + WHO_EVERY
        self._due = now + POINT_EVERY

    def _scalar(self, tag: str, value: Any, version: int | None = None) -> None:
        if is_number(value):
            walltime = self._began + self._history.t
            step = self._history.version if version is None else version
            self._open().add_scalar(tag, float(value), step, walltime)

    def _open(self) -> Writer:
        # Not before the first event: the writer starts a thread, and workers are forked earlier.
        if self._writer is None:
            self._writer = self._make(self._folder)
        return self._writer

    def _mean(self, tag: str) -> _Mean:
        return self._means.setdefault(tag, _Mean())

    def _who(self, idle: Collection[int], busy: Collection[int]) -> str:
        """A table in Markdown of all clients that are present or ever were."""
        rows = [
            "client | state | last event at | updates | lost orders | last event",
            "---|" * 5 + "---",
        ]
        for client in sorted({*self._last, *idle, *busy}):
            state = "works" if client in busy else "idle" if client in idle else "away"
            last = self._last.get(client, _Last())
            text = " ".join(last.text.replace("|", "/").split())[:200]
            updates, lost = self._history.arrivals[client], self._history.lost[client]
            rows.append(f"{client} | {state} | {last.t:.1f} s | {updates} | {lost} | {text}")
        return "\n".join(rows)


def _summary_writer(folder: Path) -> Writer:
    with told_if_missing():
        from torch.utils.tensorboard import SummaryWriter  # takes half a second to import

    writer: Writer = SummaryWriter(str(folder), flush_secs=2)
    return writer
