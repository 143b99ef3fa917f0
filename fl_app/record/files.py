"""Sinks: where a run's events go (files, the console). They receive and never answer back."""

import csv
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fl_app.core.events import Evaluated, Event, to_json
from fl_app.core.files import on_disk, open_log

FLUSH_EVERY = 2.0  # wall seconds between writes of the event log
MAX_LINES = 4096  # events held back at most


class JsonLines:
    """Writes ``events.jsonl``: one compact JSON object a line, keys in the order emitted.

    A number that is not finite is written as null, since JSON has none. Nothing of the wall clock
    enters the file: it only decides when lines that are already fixed reach the disk.

    Args:
        path: the file, overwritten.
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
        self._file = open_log(path, keep)
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
