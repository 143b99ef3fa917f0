"""Sinks that write ``events.jsonl`` and ``metrics.csv``."""

import csv
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fl_app.core.events import ClientsEvaluated, Evaluated, Event, to_json
from fl_app.core.files import on_disk, open_log

FLUSH_EVERY = 2.0  # wall seconds between writes of the event log
MAX_LINES = 4096  # most events that wait for a write


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
    what `more` gives at the first evaluation, then what later evaluations measure. A task that
    measures neither accuracy nor loss has no such column. A value that is missing or not finite is
    an empty field.

    There is also a row when the last scores of a version have come from the clients. Its columns
    are ``client_eval_clients``, ``client_eval_examples`` and for every metric
    ``client_eval_<metric>_mean``, ``_std`` and ``_worst_decile``.

    The file is a function of the events, so a run that goes on takes in those that it has logged,
    and then begins the file anew.

    Args:
        more: gives further columns by name, at every evaluation.
    """

    _COLUMNS = ("version", "t", "accuracy", "loss")

    def __init__(self, more: Callable[[], Mapping[str, float]] = dict) -> None:
        self._more = more
        self._rows: list[dict[str, Any]] = []
        self._columns: list[str] = []
        self._file: IO[str] | None = None

    def begin(self, path: Path) -> None:
        """Write the rows so far; further ones follow as their events come."""
        self._file = path.open("w", encoding="utf-8", newline="")
        self._write(self._rows)

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
        self._rows.append({key: _field(value) for key, value in row.items()})
        # Without any metric, nobody knows yet what a later evaluation measures.
        first = [key for key in self._COLUMNS if key in row or not metrics]
        columns = [*dict.fromkeys([*(self._columns or first), *row])]
        grown = columns != self._columns  # ClientApps of others have metrics of their own
        self._columns = columns
        self._write(self._rows if grown else self._rows[-1:])

    def close(self) -> None:
        """Close the file; without an evaluation it holds only the header."""
        if self._file is not None and not self._file.closed:
            with self._file:
                if not self._columns:
                    self._columns = [*self._COLUMNS]
                    self._write([])

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows, or write the file anew if they are all that there are."""
        if self._file is None or not self._columns:
            return
        writer = csv.DictWriter(self._file, self._columns, lineterminator="\n")
        if len(rows) == len(self._rows):
            self._file.seek(0)
            self._file.truncate()
            writer.writeheader()
        writer.writerows(rows)
        self._file.flush()


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
    """A number as a log has it, too."""
    value = value.item() if isinstance(value, np.generic) else value
    return "" if isinstance(value, float) and not math.isfinite(value) else value
