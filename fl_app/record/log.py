"""Writes ``events.jsonl``, and reads it, also while a run writes it, or if it is damaged."""

import json
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fl_app.core.events import Event, from_json, to_json
from fl_app.core.files import open_log

FLUSH_EVERY = 0.5  # wall seconds between writes of the event log
MAX_LINES = 4096  # maximum number of events that wait for a write


class JsonLines:
    """Sink that writes ``events.jsonl``: one compact JSON object per line.

    A number that is not finite is written as null, since JSON has no such number. The wall clock
    only decides when lines reach the disk, and never what they contain.

    Args:
        path: of the file.
        keep: bytes to keep of an existing file; None = begin a new one.
        every: wall seconds between two writes.
    """

    def __init__(self, path: Path, *, keep: int | None = None, every: float = FLUSH_EVERY) -> None:
        self._file = open_log(path, keep)
        self._encode = json.JSONEncoder(
            separators=(",", ":"), allow_nan=False, check_circular=False, default=_plain
        ).encode
        # Not in the file's buffer: a forked worker that closes its copy of the file would write
        # the buffer a second time.
        self._lines: list[str] = []
        self._every = every
        self._due = time.monotonic() + every

    def emit(self, event: Event) -> None:
        """Append one event; it reaches the disk with a later event, or at `close`."""
        flat = to_json(event)
        try:
            line = self._encode(flat)
        except ValueError:
            text = json.dumps(flat, default=_plain)  # with NaN and Infinity
            line = self._encode(json.loads(text, parse_constant=lambda name: None))
        self._lines.append(line)
        if time.monotonic() >= self._due or len(self._lines) >= MAX_LINES:
            self._write()

    def position(self) -> int:
        """Bytes written, with all events so far on disk."""
        self._write()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Write the remaining events."""
        if not self._file.closed:
            with self._file:
                self._write()

    def _write(self) -> None:
        if self._lines:
            text = "\n".join(self._lines) + "\n"
            self._lines.clear()  # a full disk may write a part of them, which must not be repeated
            self._file.write(text)
            self._file.flush()
        self._due = time.monotonic() + self._every


def read_events(path: Path, length: int | None = None) -> Iterator[Event]:
    """The events of a log in their order (`Log.read`)."""
    return Log(path).read(length)


class Log:
    """An event log, which may grow while it is read.

    Args:
        path: of the log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self, length: int | None = None) -> Iterator[Event]:
        """The events that follow those already read, in their order; none if there is no file.

        A last line without a line break is not read: the run still writes it, or was killed. Any
        other line that is not an event was damaged, such as by a failing disk. It is left out with
        a warning, since one lost event must not cost all others.

        Args:
            length: bytes to read up to, from the start of the log; None = all.
        """
        if not self._path.is_file():
            return
        damaged = 0
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                end = self._position + len(line)
                if not line.endswith(b"\n") or (length is not None and end > length):
                    break
                self._position = end
                try:
                    event = from_json(json.loads(line))
                except (ValueError, TypeError, KeyError):
                    damaged += 1
                else:
                    yield event
        if damaged:
            warnings.warn(
                f"{self._path}: damaged lines left out: {damaged}; counts may be too low",
                stacklevel=2,
            )


def _plain(value: object) -> object:
    """NumPy scalars and arrays as Python objects."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"an event cannot carry a {type(value).__name__}")
