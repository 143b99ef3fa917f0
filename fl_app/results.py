"""A run's folder: what is written at its end, and all of it where `start` was given one."""

import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from fl_app import metrics, report
from fl_app.core.events import Event
from fl_app.core.files import whole
from fl_app.engine.engine import Outcome
from fl_app.provenance import provenance
from fl_app.record.history import History
from fl_app.telemetry import JsonLines, Metrics

log = logging.getLogger("flwr")

EVENTS, SUMMARY = "events.jsonl", "summary.json"


def of_outcome(
    outcome: Outcome,
    history: History,
    num_clients: int | None,
    wall_seconds: float,
    report_accuracy: float,
) -> dict[str, Any]:
    """What ``summary.json`` says a run came to.

    To the keys below come those of `metrics.of_run`, and of `metrics.of_last_evaluation` where the
    task and the configured ``metrics`` give them.
    """
    measured = [evaluation.metrics for evaluation in history.evaluations]
    accuracies = [numbers["accuracy"] for numbers in measured if "accuracy" in numbers]
    losses = [numbers["loss"] for numbers in measured if "loss" in numbers]
    used = history.ages.total()
    return {
        "num_versions": outcome.version,
        "client_updates": history.client_updates,
        "virtual_seconds": outcome.seconds,
        "wall_seconds": wall_seconds,
        "updates_per_second": history.client_updates / wall_seconds,
        "final_accuracy": _finite(accuracies[-1:]),
        "best_accuracy": max(accuracies, default=None),
        "last10_accuracy": _finite(accuracies[-10:]),
        "final_loss": _finite(losses[-1:]),
        "model_sha256": hashlib.sha256(outcome.params.tobytes()).hexdigest(),
        "mean_staleness": sum(a * n for a, n in history.ages.items()) / used if used else None,
        "max_staleness": max(history.ages, default=None),
        "bytes_up": history.bytes_up,
        "bytes_down": history.bytes_down,
        "failures": history.failures,
        "rejected": history.rejected,
        "stopped": outcome.stopped,
        **outcome.totals,
        **metrics.of_run(history, num_clients, report_accuracy),
        **metrics.of_last_evaluation(measured[-1] if measured else {}),
    }


def write(
    folder: Path, model: Mapping[str, NDArray[np.generic]], summary: Mapping[str, Any]
) -> None:
    """Write ``model.npz`` and ``summary.json``, which is last, for it says that all is there."""
    with whole(folder / "model.npz") as file:
        np.savez(file, allow_pickle=False, **model)
    with whole(folder / SUMMARY) as file:
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
        self, outcome: Outcome, model: Mapping[str, NDArray[np.generic]], num_clients: int
    ) -> None:
        """Write model, summary, table, page and, unless Ctrl-C ended the run, pictures."""
        self.close()
        wall_seconds = time.monotonic() - self._began
        summary = {
            "algorithm": self._settings["algorithm"]["name"],
            "task": None,
            "data": None,
            "seed": self._settings["seed"],
            "num_clients": num_clients,
            **of_outcome(outcome, self._history, None, wall_seconds, report.TARGET_ACCURACY),
            **self._origin,
        }
        write(self._folder, model, summary)
        report.write_report(self._folder, figures=outcome.stopped != "interrupted")
        log.info("Files: %s", self._folder)
        log.info("Report, to open in a browser: %s", self._folder / report.PAGE)


def _finite(values: Sequence[float]) -> float | None:
    """Mean of the values; None if there is none or it is not finite, for JSON knows no NaN."""
    mean = float(np.mean(values)) if values else math.nan
    return mean if math.isfinite(mean) else None
