"""A run's folder: what is written at its end, and all of it where `start` was given one."""

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from fl_app.core.events import Event
from fl_app.core.files import atomic_write
from fl_app.record import measures as metrics
from fl_app.record.files import JsonLines, Metrics
from fl_app.record.history import History
from fl_app.record.provenance import provenance
from fl_app.record.summary import of_outcome

if TYPE_CHECKING:
    from fl_app.engine.engine import Outcome

EVENTS, SUMMARY = "events.jsonl", "summary.json"


def write_results(
    folder: Path, model: Mapping[str, NDArray[np.generic]], summary: Mapping[str, Any]
) -> None:
    """Write ``model.npz`` and ``summary.json``, which is last, for it says that all is there."""
    with atomic_write(folder / "model.npz") as file:
        np.savez(file, allow_pickle=False, **model)
    with atomic_write(folder / SUMMARY) as file:
        file.write(json.dumps(summary, indent=2).encode() + b"\n")


def require_free(folder: Path) -> None:
    """Refuse a folder that holds a run.

    Raises:
        ValueError: naming the folder and the way on.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output={folder} is no folder: the run's files would have no place")
    for name in (EVENTS, SUMMARY):
        if (folder / name).exists():
            raise ValueError(
                f"output={folder} holds a run, whose files would be lost: give another folder"
            )


class RunFolder:
    """A sink that writes the files of a run on real nodes, as the command line does.

    Args:
        folder: made if it is not there.
        settings: of the run, for ``config.yaml``.

    Raises:
        ValueError: the folder cannot be made.
        RunError: another process writes to its files.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._settings = settings
        self._began = time.monotonic()
        self._origin = provenance([])
        self._history = History()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"output={folder} cannot be made: {error}") from error
        with ExitStack() as stack:
            lines = JsonLines(folder / EVENTS)
            stack.callback(lines.close)
            table = Metrics(folder / "metrics.csv", partial(metrics.columns, self._history, None))
            stack.callback(table.close)
            OmegaConf.save(OmegaConf.create(dict(settings)), folder / "config.yaml")
            self._open = stack.pop_all()
        self._sinks = (self._history, lines, table)

    def emit(self, event: Event) -> None:
        """Hand an event on to every file."""
        for sink in self._sinks:
            sink.emit(event)

    def close(self) -> None:
        """Write what is left; may be called again."""
        self._open.close()

    def finish(
        self,
        outcome: "Outcome",
        model: Mapping[str, NDArray[np.generic]],
        num_clients: int,
        report_accuracy: float,
    ) -> None:
        """Write model and summary."""
        self.close()
        wall_seconds = time.monotonic() - self._began
        summary = {
            "algorithm": self._settings["algorithm"]["name"],
            "task": None,
            "data": None,
            "seed": self._settings["seed"],
            "num_clients": num_clients,
            **of_outcome(outcome, self._history, None, wall_seconds, report_accuracy),
            **self._origin,
        }
        write_results(self._folder, model, summary)
