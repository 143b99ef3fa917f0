"""Sinks that write ``events.jsonl``, ``metrics.csv`` and ``devices.csv``."""

import csv
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from fl_app.core.events import Arrived, ClientsEvaluated, Evaluated, Event, to_json
from fl_app.core.files import on_disk, open_log
from fl_app.record.history import History

FLUSH_EVERY = 2.0  # wall seconds between writes of the event log
MAX_LINES = 4096  # most events that wait for a write
DURATION_COLUMNS = (
    "client",
    "order",
    "start",
    "seconds",
    "bytes_down",
    "bytes_up",
)  # columns of devices.csv


class JsonLines:
    """Sink that writes ``events.jsonl``: one compact JSON object per line.

    A number that is not finite is written as null, since JSON has no such number. The wall clock
    only decides when lines reach the disk, and never what they contain.

    Args:
        path: of the file.
        keep: bytes to keep of an existing file; None = begin a new one.
        wall: seconds of the wall clock.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep: int | None = None,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = open_log(path, keep)
        self._encode = json.JSONEncoder(
            separators=(",", ":"), allow_nan=False, check_circular=False, default=_plain
        ).encode
        # Not in the file's buffer: a forked worker that closes its copy of the file would write
        # the buffer a second time.
        self._lines: list[str] = []
        self._wall = wall
        self._due = wall() + FLUSH_EVERY

    def emit(self, event: Event) -> None:
        """Append one event; it reaches the disk with a later event, or at `close`."""
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
            self._lines.clear()  # a full disk may take a part of them, which must not come twice
            self._file.write(text)
            self._file.flush()
        self._due = self._wall() + FLUSH_EVERY


class Metrics:
    """Sink that writes ``metrics.csv``: a row per evaluation, written at once.

    Columns are ``version,t,accuracy,loss``, then every other metric of the first evaluation, then
    what `more` gives at the first evaluation. A task that measures neither accuracy nor loss has no
    such column. A value that is missing or not finite is an empty field.

    There is also a row when the last scores of a version have come from the clients. Its columns
    are ``client_eval_clients``, ``client_eval_examples`` and for every metric
    ``client_eval_<metric>_mean``, ``_std`` and ``_worst_decile``.

    Args:
        path: of the file.
        more: gives further columns by name, at every evaluation.
        keep: rows to keep of an existing file, whatever columns it has got since; None = begin a
            new one.
    """

    _COLUMNS = ("version", "t", "accuracy", "loss")

    def __init__(
        self,
        path: Path,
        more: Callable[[], Mapping[str, float]] = dict,
        *,
        keep: int | None = None,
    ) -> None:
        lines: list[bytes] = []
        if keep:  # read before it is locked: a process that closes a file loses its lock
            with path.open("rb") as file:
                lines = list(islice(file, 1 + keep))
        self._path = path
        self._file = open_log(path, None if keep is None else sum(map(len, lines)))
        self._more = more
        self._rows = max(len(lines) - 1, 0)
        self._writer: csv.DictWriter[str] | None = None
        if lines:
            columns = next(csv.reader([lines[0].decode()]))
            self._writer = csv.DictWriter(
                self._file, columns, extrasaction="ignore", lineterminator="\n"
            )

    def emit(self, event: Event) -> None:
        """Append a row if the event is an evaluation."""
        match event:
            case Evaluated():
                metrics = dict(event.metrics)
            case ClientsEvaluated():
                metrics = _of_clients(event.metrics, event.clients, event.num_examples)
            case _:
                return
        row = {"version": event.version, "t": event.t, **metrics, **self._more()}
        if self._writer is None:
            further = [key for key in row if key not in self._COLUMNS]
            # Without any metric, nobody knows yet what a later evaluation measures.
            first = [key for key in self._COLUMNS if key in row or not metrics]
            self._writer = _csv_writer(self._file, (*first, *further))
        elif isinstance(event, ClientsEvaluated):
            self._add_columns([key for key in metrics if key not in self._writer.fieldnames])
        self._writer.writerow({key: _field(value) for key, value in row.items()})
        self._rows += 1
        self._file.flush()

    def _add_columns(self, names: list[str]) -> None:
        """Write the file anew with more columns: ClientApps of others have metrics of their own."""
        if not names:
            return
        with self._path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            columns, rows = (*(reader.fieldnames or ()), *names), list(reader)
        self._file.seek(0)
        self._file.truncate()
        self._writer = _csv_writer(self._file, columns)
        self._writer.writerows(rows)

    def position(self) -> int:
        """Rows written, all on disk. Their bytes change when columns are added."""
        on_disk(self._file)
        return self._rows

    def close(self) -> None:
        """Close the file; without an evaluation it holds only the header."""
        if self._writer is None and not self._file.closed:
            self._writer = _csv_writer(self._file, self._COLUMNS)
        self._file.close()


class Recorder:
    """Sink that writes ``devices.csv``: a row per update that arrived.

    Args:
        path: of the file.
        history: of the run; takes in every event before this sink does.
        keep: bytes to keep of an existing file; None = begin a new one.
    """

    def __init__(self, path: Path, history: History, *, keep: int | None = None) -> None:
        self._file = open_log(path, keep)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._history = history
        if keep is None:
            self._writer.writerow(DURATION_COLUMNS)

    def emit(self, event: Event) -> None:
        """Append a row if the event is an arrival."""
        if isinstance(event, Arrived):
            order = self._history.waiting[event.order]
            seconds = event.t - order.start
            sizes = order.bytes_down, order.bytes_up
            self._writer.writerow((order.client, order.sequence, order.start, seconds, *sizes))
            self._file.flush()

    def position(self) -> int:
        """Bytes written, all on disk."""
        return on_disk(self._file)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _plain(value: object) -> object:
    """NumPy scalars and arrays as Python objects."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"an event cannot carry a {type(value).__name__}")


def _finite(value: Any) -> Any:
    """`value` with None for every number that is not finite, at any depth."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _of_clients(figures: Mapping[str, Any], clients: int, num_examples: int) -> dict[str, Any]:
    """The columns of an evaluation on clients."""
    return {
        "client_eval_clients": clients,
        "client_eval_examples": num_examples,
        **{f"client_eval_{key}": value for key, value in figures.items()},
    }


def _field(value: Any) -> Any:
    return "" if isinstance(value, float | np.floating) and not math.isfinite(value) else value


def _csv_writer(file: IO[str], columns: Sequence[str]) -> "csv.DictWriter[str]":
    writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    return writer
