"""The files of a run in its folder."""

import csv
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from fl_app.core.events import ClientsEvaluated, Evaluated, Event
from fl_app.core.files import atomic_write
from fl_app.record import measures
from fl_app.record.history import History
from fl_app.record.log import JsonLines, read_events
from fl_app.record.provenance import provenance
from fl_app.record.score import Score
from fl_app.record.summary import of_outcome

if TYPE_CHECKING:
    from fl_app.engine.engine import Outcome

EVENTS, SUMMARY, MODEL = "events.jsonl", "summary.json", "model.npz"
TABLE, PARTITION = "metrics.csv", "partition.csv"


def require_free(folder: Path) -> None:
    """Refuse a folder that holds a run.

    Raises:
        ValueError: the folder holds a run, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output={folder} is no folder: the run's files would have no place")
    for name in (EVENTS, SUMMARY):
        if (folder / name).exists():
            raise ValueError(
                f"output={folder} holds a run, whose files would be lost: give another folder"
            )


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
        self._write(self._rows, anew=True)

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
        self._write(self._rows if grown else self._rows[-1:], anew=grown)

    def close(self) -> None:
        """Close the file; without an evaluation it holds only the header."""
        if self._file is not None and not self._file.closed:
            with self._file:
                if not self._columns:
                    self._columns = [*self._COLUMNS]
                    self._write([], anew=True)

    def _write(self, rows: Sequence[Mapping[str, Any]], *, anew: bool) -> None:
        """Append rows, or begin the file anew with them."""
        if self._file is None or not self._columns:
            return
        writer = csv.DictWriter(self._file, self._columns, lineterminator="\n")
        if anew:
            self._file.seek(0)  # what is there is shorter
            writer.writeheader()
        writer.writerows(rows)
        self._file.flush()


class RunFolder:
    """Sink that writes the files of a run; it writes nothing before `lock`.

    Args:
        folder: of the run.
        history: of the run; takes in every event before this sink does. Of a run that is resumed
            it is filled with the events before the checkpoint.
        overrides: the user's.
        kept: `state_dict` at the checkpoint from which the run is resumed; None = a new run.
    """

    def __init__(
        self,
        folder: Path,
        history: History,
        *,
        overrides: Sequence[str] = (),
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = folder
        self._history = history
        self._overrides = list(overrides)
        self._origin = provenance(overrides, kept and kept["provenance"])
        self._began = time.monotonic() - (kept["wall_seconds"] if kept else 0.0)
        self._table = Metrics(self.columns)
        self._log: JsonLines | None = None
        self._kept: int | None = kept["positions"][EVENTS] if kept else None
        self._open = ExitStack()
        # Before the log is locked: a process loses its lock when it closes any handle of the file.
        for event in read_events(folder / EVENTS, self._kept or 0):
            history.emit(event)
            self._table.emit(event)

    @property
    def wall_seconds(self) -> float:
        """Since the run began, without the time between an interruption and its resumption."""
        return time.monotonic() - self._began

    def columns(self) -> dict[str, float]:
        """The columns of ``metrics.csv`` that come from the history."""
        return measures.columns(self._history)

    def lock(self) -> None:
        """Create the folder and open the event log, for which this process is the only writer.

        Raises:
            OSError: the folder cannot be created or written to.
            RunError: another process writes to the log; no file has changed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log = JsonLines(self._folder / EVENTS, keep=self._kept)
        self._open.callback(self._log.close)

    def begin(
        self,
        settings: object,
        *,
        partition: tuple[Sequence[str], NDArray[np.int64]] | None = None,
    ) -> None:
        """Write the configuration, and begin ``metrics.csv``.

        Args:
            settings: of the run, for ``config.yaml``.
            partition: names of the classes, and the examples of each of them on each client, shape
                ``(N, C)``, for ``partition.csv``; None = they are not known.
        """
        # If this run is killed, the summary of an earlier run must not be taken for its own.
        (self._folder / SUMMARY).unlink(missing_ok=True)
        # A sweep's report names its jobs after their overrides.
        for name, content in (("config.yaml", settings), ("overrides.yaml", self._overrides)):
            with atomic_write(self._folder / name) as file:
                text = OmegaConf.to_yaml(OmegaConf.create(content), resolve=True)  # type: ignore[call-overload]
                file.write(text.encode())
        if partition is not None:
            names, counts = partition
            rows = ((client, *row) for client, row in enumerate(counts.tolist()))
            with (self._folder / PARTITION).open("w", encoding="utf-8", newline="") as table:
                csv.writer(table, lineterminator="\n").writerows([("client", *names), *rows])
        self._table.begin(self._folder / TABLE)
        self._open.callback(self._table.close)

    def emit(self, event: Event) -> None:
        """Hand an event to both files that grow."""
        assert self._log is not None
        self._log.emit(event)
        self._table.emit(event)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, with all events so far on disk."""
        assert self._log is not None
        return {
            "positions": {EVENTS: self._log.position()},
            "wall_seconds": self.wall_seconds,
            "provenance": self._origin,
        }

    def close(self) -> None:
        """Write what is left; may be called again."""
        self._open.close()

    def finish(
        self,
        outcome: "Outcome",
        model: Mapping[str, NDArray[np.generic]],
        about: Mapping[str, Any],
        report_accuracy: float,
        score: Score | None = None,
    ) -> dict[str, Any]:
        """Write ``model.npz``, then ``summary.json``, which says that all files are complete.

        Args:
            outcome: of the run.
            model: final arrays by name.
            about: what was run, the first keys of the summary.
            report_accuracy: in [0, 1], the accuracy to which times are measured.
            score: of the task; None = accuracy or, if no evaluation has it, the loss.

        Returns:
            The summary.
        """
        wall_seconds = self.wall_seconds
        self.close()
        results = of_outcome(outcome, self._history, wall_seconds, report_accuracy, score)
        summary = {**about, **results, **self._origin}
        with atomic_write(self._folder / MODEL) as file:
            np.savez(file, allow_pickle=False, **model)
        with atomic_write(self._folder / SUMMARY) as file:
            file.write(json.dumps(summary, indent=2).encode() + b"\n")
        return summary


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
