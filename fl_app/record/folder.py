"""The files of a run in its folder."""

import csv
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf

from fl_app.core.errors import explaining
from fl_app.core.events import ClientsEvaluated, Evaluated, Event
from fl_app.core.files import atomic_write, write_text
from fl_app.core.score import Score
from fl_app.core.types import Array, Indices
from fl_app.record.history import History
from fl_app.record.log import FLUSH_EVERY, JsonLines, read_events
from fl_app.record.provenance import provenance
from fl_app.record.summary import columns, of_outcome

if TYPE_CHECKING:
    from fl_app.engine.engine import Outcome

EVENTS, SUMMARY, MODEL = "events.jsonl", "summary.json", "model.npz"
TABLE, PARTITION, SCHEMA = "metrics.csv", "partition.csv", "schema.json"
REFUSED = "refused.txt"  # why the configuration of a run on real nodes was refused


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


def read_summary(folder: Path) -> dict[str, Any]:
    """The contents of ``summary.json``; empty if there is none, as while a run goes on.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / SUMMARY
    with explaining(f"{path} is damaged"):
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_metrics(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write ``metrics.csv``: a row per evaluation.

    Columns are ``version,t,accuracy,loss``, then the other keys of the rows, in their order. A task
    that measures neither accuracy nor loss has no such column. A value that is missing or not
    finite is an empty field.
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    first = [key for key in ("version", "t", "accuracy", "loss") if not rows or key in keys]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, dict.fromkeys([*first, *keys]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@dataclass(eq=False)
class RunFolder:
    """Sink that writes the files of a run; it writes nothing before `lock`.

    Args:
        folder: of the run.
        history: of the run; receives every event before this sink does. In a resumed run, the
            events before the checkpoint fill it.
        overrides: the user's.
        saved: `state_dict` at the checkpoint from which the run is resumed; None = a new run.
        live: whether each event reaches the disk at once, as between slow devices.
    """

    folder: Path
    history: History
    _: KW_ONLY
    overrides: Sequence[str] = ()
    saved: InitVar[Mapping[str, Any] | None] = None
    live: bool = False

    def __post_init__(self, saved: Mapping[str, Any] | None) -> None:
        self._origin = provenance(self.overrides, saved and saved["provenance"])
        self._start = time.monotonic() - (saved["wall_seconds"] if saved else 0.0)
        self._rows: list[dict[str, Any]] = []  # of ``metrics.csv``
        self._log: JsonLines | None = None
        self._log_length: int | None = saved["positions"][EVENTS] if saved else None
        # Before the log is locked: a process loses its lock when it closes any handle of the file.
        for event in read_events(self.folder / EVENTS, self._log_length or 0):
            self.history.emit(event)
            self._measure(event)

    @property
    def wall_seconds(self) -> float:
        """Duration of the run, without the time between an interruption and its resumption."""
        return time.monotonic() - self._start

    def lock(self) -> None:
        """Create the folder and open the event log, for which this process is the only writer.

        Raises:
            OSError: the folder cannot be created or written to.
            RunError: another process writes to the log, or it is shorter than at the checkpoint; no
                file has changed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        every = 0.0 if self.live else FLUSH_EVERY
        self._log = JsonLines(self.folder / EVENTS, keep=self._log_length, every=every)

    def begin(
        self,
        settings: object,
        partition: tuple[Sequence[str], Indices] | None = None,
    ) -> None:
        """Write the configuration.

        Args:
            settings: of the run, for ``config.yaml``.
            partition: names of the classes, and the examples of each of them on each client, shape
                ``(N, C)``, for ``partition.csv``; None = they are not known.
        """
        # If this run is killed, earlier results must not be taken for its own.
        for name in (SUMMARY, TABLE, MODEL):
            (self.folder / name).unlink(missing_ok=True)
        write_text(self.folder / "config.yaml", OmegaConf.to_yaml(settings, resolve=True))
        # A sweep's report names its jobs after their overrides, as typed, ${key} included.
        write_text(self.folder / "overrides.yaml", OmegaConf.to_yaml(list(self.overrides)))
        if partition is not None:
            names, counts = partition
            rows = ((client, *row) for client, row in enumerate(counts.tolist()))
            with (self.folder / PARTITION).open("w", encoding="utf-8", newline="") as table:
                csv.writer(table, lineterminator="\n").writerows([("client", *names), *rows])

    def emit(self, event: Event) -> None:
        """Log an event."""
        assert self._log is not None
        self._log.emit(event)
        self._measure(event)

    def _measure(self, event: Event) -> None:
        """Add the row of an evaluation on the server, or of a completed one on clients."""
        match event:
            case Evaluated():
                metrics = event.metrics
            case ClientsEvaluated():
                metrics = {
                    "client_eval_clients": event.clients,
                    "client_eval_examples": event.num_examples,
                    **{f"client_eval_{key}": value for key, value in event.metrics.items()},
                }
            case _:
                return
        row = {"version": event.version, "t": event.t, **metrics, **columns(self.history)}
        self._rows.append({key: _field(value) for key, value in row.items()})

    def state_dict(self) -> dict[str, Any]:
        """The state to resume from; all events so far are on disk."""
        assert self._log is not None
        return {
            "positions": {EVENTS: self._log.position()},
            "wall_seconds": self.wall_seconds,
            "provenance": self._origin,
        }

    def close(self) -> None:
        """Write the remaining events; may be called repeatedly."""
        if self._log is not None:
            self._log.close()

    def finish(
        self,
        outcome: "Outcome",
        model: Mapping[str, Array],
        facts: Mapping[str, Any],
        report_accuracy: float,
        score: Score | None = None,
    ) -> dict[str, Any]:
        """Write the results; ``summary.json``, which is last, shows that all files are complete.

        Args:
            outcome: of the run.
            model: final arrays by name.
            facts: what ran; the first keys of the summary.
            report_accuracy: in [0, 1], the accuracy to which times are measured.
            score: of the task; None = accuracy or, if no evaluation has it, the loss.

        Returns:
            The summary.
        """
        results = of_outcome(outcome, self.history, self.wall_seconds, report_accuracy, score)
        self.close()
        summary = {**facts, **results, **self._origin}
        write_metrics(self.folder / TABLE, self._rows)
        with atomic_write(self.folder / MODEL) as file:
            np.savez(file, allow_pickle=False, **model)
        write_text(self.folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
        return summary


def _field(value: Any) -> Any:
    """A value as a field: NumPy scalars as Python's, non-finite numbers empty."""
    value = value.item() if isinstance(value, np.generic) else value
    return "" if isinstance(value, float) and not math.isfinite(value) else value
