"""Records the durations of orders on real nodes, for `fl_app.devices.Replay`."""

import csv
from pathlib import Path

from fl_app.core.events import Arrived, Event
from fl_app.core.files import on_disk, open_log
from fl_app.record.history import History

COLUMNS = ("client", "order", "start", "seconds", "bytes_down", "bytes_up")


class Recorder:
    """Sink that writes ``devices.csv``: a row per update that arrived, written at once.

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
            self._writer.writerow(COLUMNS)

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
