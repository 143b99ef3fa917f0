"""Sink: a run in TensorBoard while it goes on (``tensorboard --logdir <run folder>``)."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fl_app.core.errors import is_number
from fl_app.core.events import (
    Aggregated,
    Arrived,
    Dispatched,
    Evaluated,
    Event,
    Failed,
    Rejected,
)
from fl_app.record.history import History

POINT_EVERY = 1.0  # wall seconds between points at least, but for evaluations
WHO_EVERY = 10.0  # wall seconds between tables of who is there
MAX_CLIENTS = 100  # of whom such a table can tell

Clients = tuple[Collection[int], Collection[int]]


class Writer(Protocol):
    """What is needed of ``torch.utils.tensorboard.SummaryWriter``."""

    def add_scalar(self, tag: str, value: float, step: int, walltime: float) -> None: ...
    def add_text(self, tag: str, text: str, step: int, walltime: float) -> None: ...
    def close(self) -> None: ...


@dataclass
class _Mean:
    """Of what came since it was last taken."""

    total: float = 0.0
    count: int = 0
    most: float = -math.inf

    def add(self, value: Any) -> None:
        if is_number(value):
            self.total += value
            self.count += 1
            self.most = max(self.most, value)


@dataclass
class _Life:
    """What is known of a client."""

    heard: float = 0.0
    updates: int = 0
    lost: int = 0
    last: str = ""


class TensorBoard:
    """Writes TensorBoard's event files: over versions as steps, and over the run's clock as time.

    There is a point for every evaluation, and in between one a second of real time at most, with
    means over all that happened since the last one; so a fast simulated run is not slowed down by
    it. Tags:

    - ``test/...``: metrics of the evaluations;
    - ``clients/loss``, ``clients/staleness``, ``clients/staleness_max``: of updates;
    - ``clients/online``, ``clients/in_flight``: how many; ``clients/who``: each of them, as text,
      where there are `MAX_CLIENTS` at most;
    - ``total/...``: arrivals, failures, rejects, and what `more` gives, bytes among it;
    - ``strategy/...``: numbers that the strategy reports of its aggregations; of a list, the mean.

    Args:
        folder: for the files.
        history: of the run; takes in every event before this sink does.
        clients: gives those who are there and idle, and those who work on an order.
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
        self._version = 0
        self._t = 0.0
        self._means: dict[str, _Mean] = {}
        self._lives: dict[int, _Life] = {}

    def emit(self, event: Event) -> None:
        """Take in one event, and write a point if it is time."""
        self._t = event.t
        match event:
            case Dispatched():
                self._life(event.client).last = f"order, version {event.version}"
            case Arrived():
                self._mean("clients/loss").add(event.loss)
                life = self._life(event.client)
                life.updates += 1
                life.last = "update" if event.loss is None else f"update, loss {event.loss:.4g}"
            case Failed() | Rejected():
                if event.client is not None:
                    life = self._life(event.client)
                    life.lost += 1
                    life.last = f"{event.kind}: {event.reason}"
            case Aggregated():
                self._aggregate(event)
            case Evaluated():
                self._version = event.version
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
        self._version = event.version
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
            if len(self._lives) <= MAX_CLIENTS and len(idle) <= MAX_CLIENTS:
                text = _who(self._lives, idle, busy)
                self._open().add_text("clients/who", text, self._version, self._began + self._t)
            self._who_due = now + WHO_EVERY
        self._due = now + POINT_EVERY

    def _scalar(self, tag: str, value: Any) -> None:
        if is_number(value):
            self._open().add_scalar(tag, float(value), self._version, self._began + self._t)

    def _open(self) -> Writer:
        # Not before the first event: it starts a thread, and workers are forked before that.
        if self._writer is None:
            self._writer = self._make(self._folder)
        return self._writer

    def _mean(self, tag: str) -> _Mean:
        return self._means.setdefault(tag, _Mean())

    def _life(self, client: int) -> _Life:
        life = self._lives.setdefault(client, _Life())
        life.heard = self._t
        return life


def _who(lives: Mapping[int, _Life], idle: Collection[int], busy: Collection[int]) -> str:
    """A table in Markdown of all clients that are there or ever were."""
    rows = [
        "client | state | last event at | updates | lost orders | last event",
        "---|" * 5 + "---",
    ]
    for client in sorted({*lives, *idle, *busy}):
        state = "works" if client in busy else "idle" if client in idle else "away"
        life = lives.get(client, _Life())
        last = " ".join(life.last.replace("|", "/").split())[:200]
        rows.append(
            f"{client} | {state} | {life.heard:.1f} s | {life.updates} | {life.lost} | {last}"
        )
    return "\n".join(rows)


def _summary_writer(folder: Path) -> Writer:
    from torch.utils.tensorboard import SummaryWriter  # half a second, only if wanted

    writer: Writer = SummaryWriter(str(folder), flush_secs=2)
    return writer
