"""Sinks: where a run's events go (files, the console). They receive and never answer back."""

import csv
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from fl_app.core.events import Evaluated, Event, to_json
from fl_app.core.files import behind, on_disk
from fl_app.record.history import History

FLUSH_EVERY = 2.0  # wall seconds between writes of the event log
MAX_LINES = 4096  # events held back at most
REFRESH_EVERY = 0.1  # wall seconds between redraws of a progress bar
LINE_EVERY = 10.0  # wall seconds between lines where a bar cannot be drawn


class JsonLines:
    """Writes ``events.jsonl``: one compact JSON object a line, keys in the order emitted.

    A number that is not finite is written as null, since JSON has none. Nothing of the wall clock
    enters the file: it only decides when lines that are already fixed reach the disk.

    Args:
        path: the file, overwritten.
        keep: bytes of the file that is there to go on behind; None = begin a new one.
        wall: seconds of the wall clock.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep: int | None = None,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = behind(path, keep)
        self._encode = json.JSONEncoder(
            separators=(",", ":"), allow_nan=False, check_circular=False, default=_plain
        ).encode
        # Held here and not in the file's buffer: a forked worker that drops its copy of the file
        # would write the buffer a second time.
        self._lines: list[str] = []
        self._wall = wall
        self._due = wall() + FLUSH_EVERY

    def emit(self, event: Event) -> None:
        """Append one event; it reaches the disk within seconds of events to come, or at `close`."""
        flat = to_json(event)
        try:
            line = self._encode(flat)
        except ValueError:
            line = self._encode(_finite(flat))
        self._lines.append(line)
        if self._wall() >= self._due or len(self._lines) >= MAX_LINES:
            self._write()

    def position(self) -> int:
        """Bytes written, with all events so far on disk."""
        self._write()
        return on_disk(self._file)

    def close(self) -> None:
        """Write what is left."""
        if not self._file.closed:
            with self._file:
                self._write()

    def _write(self) -> None:
        if self._lines:
            text = "\n".join(self._lines) + "\n"
            self._lines.clear()  # where the disk is full, part of them is written: never twice
            self._file.write(text)
            self._file.flush()
        self._due = self._wall() + FLUSH_EVERY


class Metrics:
    """Writes ``metrics.csv``: a row per evaluation, on disk at once.

    Columns are ``version,t,accuracy,loss``, then every other metric of the first evaluation, then
    what `more` gives at the first evaluation. A value that is missing or not finite is an empty
    field.

    Args:
        path: the file, overwritten.
        more: gives further columns by name, asked at every evaluation.
        keep: as of `JsonLines`.
    """

    _COLUMNS = ("version", "t", "accuracy", "loss")

    def __init__(
        self,
        path: Path,
        more: Callable[[], Mapping[str, float]] = dict,
        *,
        keep: int | None = None,
    ) -> None:
        self._file = behind(path, keep)
        self._more = more
        self._writer: csv.DictWriter[str] | None = None
        if keep:
            with path.open(encoding="utf-8", newline="") as file:
                self._writer = csv.DictWriter(
                    self._file, next(csv.reader(file)), extrasaction="ignore", lineterminator="\n"
                )

    def emit(self, event: Event) -> None:
        """Append a row if the event is an evaluation."""
        if not isinstance(event, Evaluated):
            return
        row = {"version": event.version, "t": event.t, **event.metrics, **self._more()}
        if self._writer is None:
            self._writer = _csv_writer(self._file, (*self._COLUMNS, *_further(row)))
        self._writer.writerow({key: _field(value) for key, value in row.items()})
        self._file.flush()

    def position(self) -> int:
        """Bytes written, all on disk."""
        return on_disk(self._file)

    def close(self) -> None:
        """Close the file; without any evaluation it holds the header alone."""
        if self._writer is None and not self._file.closed:
            self._writer = _csv_writer(self._file, self._COLUMNS)
        self._file.close()


class Progress:
    """Shows on the console how far a run is: a bar, or now and then a line where there is none.

    Redrawn by hand as events come: a run forks worker processes, so no thread may draw.

    Args:
        history: of the run; takes in every event before this sink does.
        total_versions: versions to publish; inf where something else ends the run.
        label: what runs, such as the cell's name.
        updates: client updates after which the run ends; inf = never.
        seconds: on the run's clock, after which it ends; inf = never.
        console: where to; default standard output.
        wall: seconds of the wall clock.
    """

    def __init__(
        self,
        history: History,
        total_versions: float,
        label: str,
        *,
        updates: float = math.inf,
        seconds: float = math.inf,
        console: Console | None = None,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history = history
        self._total = total_versions
        self._total_updates = updates
        self._total_seconds = seconds
        self._label = label
        self._console = console or Console()
        self._wall = wall
        self._began = wall()
        self._before = history.client_updates  # of a run that is resumed
        self._bar: RichProgress | None = None
        self._every = LINE_EVERY
        if self._console.is_interactive:
            self._every = REFRESH_EVERY
            self._bar = RichProgress(
                TextColumn("{task.description:12}", markup=False),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[status]}", markup=False),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                console=self._console,
                expand=True,
                auto_refresh=False,
                get_time=wall,
            )
            ends = any(map(math.isfinite, (total_versions, updates, seconds)))
            self._task = self._bar.add_task(
                label, total=1.0 if ends else None, status=self._status()
            )
            self._bar.start()
        self._due = wall() + self._every

    def emit(self, event: Event) -> None:
        """Redraw if it is time."""
        del event
        if self._wall() >= self._due:
            self._show()
            self._due = self._wall() + self._every

    def close(self) -> None:
        """Show the last state and leave it standing."""
        self._show()
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(
                self._task, completed=self._share(), status=self._status(), refresh=True
            )
        else:
            line = " ".join(f"{self._label}: {self._status()}".split())
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _share(self) -> float:
        """Of the way to that end of the run which is nearest."""
        return max(
            self._history.version / self._total,
            self._history.client_updates / self._total_updates,
            self._history.t / self._total_seconds,
        )

    def _status(self) -> str:
        history = self._history
        updates = history.client_updates
        rate = (updates - self._before) / max(self._wall() - self._began, 1e-9)
        last = history.evaluations[-1].accuracy if history.evaluations else math.nan
        accuracy = f"{last:.1%}" if math.isfinite(last) else "-"
        done = f"{history.version}{_of(self._total, '.0f')}"
        work = f"{updates:,}{_of(self._total_updates, ',.0f')} updates at {rate:,.0f}/s"
        limit = _of(self._total_seconds, ",.1f")
        time = f"  {history.t:,.1f}{limit} s" if limit else ""
        return f"{done:>9} versions {work:>24}{time}  acc {accuracy:>6}"


def _plain(value: object) -> object:
    """NumPy scalars and arrays as JSON knows them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"an event cannot carry a {type(value).__name__}")


def _finite(value: Any) -> Any:
    """`value` with null for every number that is not finite, at any depth."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _of(total: float, form: str) -> str:
    """A total to be written after what is done; nothing if there is none."""
    return f"/{total:{form}}" if math.isfinite(total) else ""


def _further(row: Mapping[str, Any]) -> list[str]:
    return [key for key in row if key not in Metrics._COLUMNS]


def _field(value: Any) -> Any:
    return "" if isinstance(value, float | np.floating) and not math.isfinite(value) else value


def _csv_writer(file: IO[str], columns: tuple[str, ...]) -> "csv.DictWriter[str]":
    writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    return writer
