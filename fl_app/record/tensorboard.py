"""Shows a run in TensorBoard while it goes on (``tensorboard --logdir <run folder>``)."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from fl_app.core.errors import is_number
from fl_app.core.events import Aggregated, Arrived, ClientsEvaluated, Evaluated, Event
from fl_app.core.extras import told_if_missing
from fl_app.record.history import History

POINT_EVERY = 1.0  # wall seconds between points at least, except for evaluations

Clients = tuple[Collection[int], Collection[int]]


class Writer(Protocol):
    """The methods of ``torch.utils.tensorboard.SummaryWriter`` that are used."""

    def add_scalar(self, tag: str, value: float, step: int, walltime: float) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Sink that writes TensorBoard's event files: steps are versions, times those of the run.

    There is a point for every evaluation. Between evaluations there is at most one a second of real
    time, with means over what happened since the last point: a fast simulated run is not slowed
    down. Tags:

    - ``test/...``: metrics of the evaluations;
    - ``on_clients/...``: mean, standard deviation and worst decile of the evaluations on clients;
    - ``clients/loss``, ``clients/staleness``: of updates;
    - ``clients/online``, ``clients/in_flight``: numbers of clients;
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
        self._due = -math.inf
        self._since: dict[str, list[float]] = {}  # the numbers since the last point, by tag

    def emit(self, event: Event) -> None:
        """Take in one event, and write a point if it is time."""
        match event:
            case ClientsEvaluated():
                for key, value in event.metrics.items():
                    self._scalar(f"on_clients/{key}", value, event.version)
            case Arrived():
                self._add("clients/loss", event.loss)
            case Aggregated():
                self._add("clients/staleness", *event.age)
                for key, value in event.report.items():
                    self._add(f"strategy/{key}", *(value if isinstance(value, list) else [value]))
            case Evaluated():
                for key, value in event.metrics.items():
                    self._scalar(f"test/{key}", value)
        if isinstance(event, Evaluated) or self._wall() >= self._due:
            self._point()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._point()
            self._writer.close()
            self._writer = None

    def _add(self, tag: str, *values: Any) -> None:
        self._since.setdefault(tag, []).extend(filter(is_number, values))

    def _point(self) -> None:
        history = self._history
        idle, busy = self._clients()
        totals = {
            "arrivals": history.client_updates,
            "failures": history.failures,
            "rejects": history.rejected,
            **self._more(),
        }
        point = {
            **{tag: fmean(values) for tag, values in self._since.items() if values},
            **{f"total/{key}": value for key, value in totals.items()},
            "clients/online": len(idle) + len(busy),
            "clients/in_flight": len(busy),
        }
        for tag, value in point.items():
            self._scalar(tag, value)
        self._since.clear()
        self._due = self._wall() + POINT_EVERY

    def _scalar(self, tag: str, value: Any, version: int | None = None) -> None:
        if not is_number(value):
            return
        # Not before the first event: the writer starts a thread, and workers are forked earlier.
        if self._writer is None:
            self._writer = self._make(self._folder)
        step = self._history.version if version is None else version
        self._writer.add_scalar(tag, float(value), step, self._began + self._history.t)


def _summary_writer(folder: Path) -> Writer:
    with told_if_missing():
        from torch.utils.tensorboard import SummaryWriter  # takes half a second to import

    writer: Writer = SummaryWriter(str(folder), flush_secs=2)
    return writer
