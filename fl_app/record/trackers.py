"""Hands finished runs to a tracker of experiments: MLflow, or Weights & Biases without a network.

A run is handed over when it has ended, from its files. So trackers cost a run nothing, and a run
that was interrupted is there once.
"""

import csv
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fl_app.core.files import atomic_write
from fl_app.record.folder import SUMMARY, TABLE, TRACKED

TRACKERS = ("mlflow", "wandb")
BATCH = 100  # values in a call, at most what MLflow accepts
LONGEST = 500  # characters of a value


def track(tracker: str, folder: Path, store: Path, name: str) -> None:
    """Hand a finished run over, once to each tracker that is asked for in turn.

    Args:
        tracker: one of `TRACKERS`.
        folder: of the run.
        store: folder in which the tracker keeps its files.
        name: of the run.
    """
    path = folder / TRACKED
    if path.exists() and json.loads(path.read_text())["tracker"] == tracker:
        return
    identity = {"mlflow": _mlflow, "wandb": _wandb}[tracker](folder, store, name)
    with atomic_write(path) as file:
        file.write(json.dumps({"tracker": tracker, "run": identity}).encode())


def _mlflow(folder: Path, store: Path, name: str) -> str:
    # Its newest versions advise a database in place of files, and refuse files unless told so.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    summary, settings = _summary(folder), _settings(folder)
    client = MlflowClient(tracking_uri=(store.resolve() / "mlruns").as_uri())
    group = settings.get("experiment.name") or store.resolve().name
    known = client.get_experiment_by_name(group)
    experiment = client.create_experiment(group) if known is None else known.experiment_id
    tags = {key: str(summary[key]) for key in ("commit", "version", "stopped", "data", "seed")}
    params = [Param(key, str(value)[:LONGEST]) for key, value in settings.items()]
    now = int(1000 * time.time())
    metrics = [
        Metric(key, value, now, int(row["version"]))
        for row in _rows(folder)
        for key, value in row.items()
    ]
    metrics += [Metric(f"summary.{key}", value, now, 0) for key, value in _numbers(summary).items()]
    run = client.create_run(experiment, run_name=name, tags=tags).info.run_id
    try:
        for start in range(0, max(len(params), len(metrics)), BATCH):
            part = slice(start, start + BATCH)
            client.log_batch(run, metrics=metrics[part], params=params[part])
        for file in (SUMMARY, TABLE, "config.yaml"):
            client.log_artifact(run, str(folder / file))
    except BaseException:
        client.delete_run(run)  # it is handed over anew, and would be there twice
        raise
    client.set_terminated(run)
    return str(run)


def _wandb(folder: Path, store: Path, name: str) -> str:
    import wandb

    summary, settings = _summary(folder), _settings(folder)
    run = wandb.init(
        mode="offline",
        dir=str(store),
        project=settings.get("experiment.name") or "fl-app",
        name=name,
        config=settings,
        tags=[f"commit {summary['commit']}"] if summary["commit"] else [],
        settings=wandb.Settings(console="off", silent=True),
    )
    try:
        # Scores of clients may come late, and a step below the last one would be left out.
        rows = sorted(_rows(folder), key=lambda row: row["version"])
        for row in rows:
            measured = {key: value for key, value in row.items() if key != "version"}
            run.log(measured, int(row["version"]))
        columns = list(dict.fromkeys(key for row in rows for key in row))
        data = [[row.get(key) for key in columns] for row in rows]
        run.log({"evaluations": wandb.Table(columns=columns, data=data)})
        run.summary.update({key: value for key, value in summary.items() if value is not None})
        return str(run.id)
    finally:
        run.finish()  # else the next run would be logged into this one


def _summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text())
    return summary


def _settings(folder: Path) -> dict[str, Any]:
    """The configuration by dotted keys, without the other cells of the experiment."""
    config = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    assert isinstance(config, dict)
    config["experiment"] = {key: config["experiment"][key] for key in ("name", "scale")}
    return dict(_dotted(config))


def _dotted(node: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _rows(folder: Path) -> Iterator[dict[str, float]]:
    """The finite numbers of every evaluation."""
    with (folder / TABLE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers = {key: float(value) for key, value in row.items() if value}
            yield {key: value for key, value in numbers.items() if math.isfinite(value)}


def _numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
