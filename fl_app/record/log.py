"""Reads ``events.jsonl``: of a run that still goes on, or damaged."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

from fl_app.core.events import Event, from_json


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

        A last line without an end is not read yet: its run goes on, or was killed. Any other line
        that is not an event was damaged, such as by a failing disk. It is left out with a warning:
        one lost event must not cost all others.

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
                except (ValueError, TypeError, AttributeError):
                    damaged += 1
                else:
                    yield event
        if damaged:
            warnings.warn(
                f"{self._path}: damaged lines left out: {damaged}; counts may be too low",
                stacklevel=2,
            )
