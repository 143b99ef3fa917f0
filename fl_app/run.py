"""One run, or the cells of an experiment, from configuration to files."""

import gc
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from fl_app import metrics, report, results
from fl_app.checkpoint import Checkpoints, different
from fl_app.client import TrainingTask
from fl_app.core.errors import Interrupted, RunError
from fl_app.core.events import Sink
from fl_app.core.files import explained
from fl_app.devices import Recorder
from fl_app.engine.engine import Outcome, check_complete
from fl_app.factory import (
    build_devices,
    build_engine,
    build_task,
    build_trainer,
    prepare_process,
)
from fl_app.provenance import provenance
from fl_app.record.history import History
from fl_app.record.log import read_events
from fl_app.report.cells import ENDS
from fl_app.signals import interruptible
from fl_app.tasks.task import Task
from fl_app.telemetry import JsonLines, Metrics, Progress
from fl_app.tensorboard import TensorBoard
from fl_app.validate import checked_cells

if TYPE_CHECKING:
    from flwr.serverapp import Grid

SMOKE_TESTS = 20  # test examples


def run(
    config: DictConfig,
    overrides: Sequence[str],
    folder: Path,
    grid: "Grid | None" = None,
    shared: Path | None = None,
    cells: Mapping[str, DictConfig] | None = None,
) -> list[dict[str, Any]]:
    """Run what the configuration says: one run, or every cell of its experiment.

    Args:
        config: composed from ``conf/``.
        overrides: the user's own; they win over those of an experiment's cells.
        folder: where files go; cells get folders of their own in it.
        grid: of the ServerApp, for the runtimes that need one.
        shared: as of `fl_app.report.write_report`.
        cells: as `fl_app.validate.checked_cells` gives them, if that was asked before.

    Returns:
        The summaries, one a cell.

    Raises:
        ValueError: the configuration is refused; nothing was run.
        RunError: a run could not go on or was interrupted; its files and the report are written,
            unless the disk is full.
    """
    if cells is None:
        cells = checked_cells(config, overrides)
    with explained(folder):
        return _run(cells, overrides, folder, config.experiment.report_accuracy, grid, shared)


def _run(
    cells: Mapping[str, DictConfig],
    overrides: Sequence[str],
    folder: Path,
    target: float | None,
    grid: "Grid | None",
    shared: Path | None,
) -> list[dict[str, Any]]:
    summaries = []
    problem: RunError | None = None
    for number, (name, cell) in enumerate(cells.items(), 1):
        where = folder / name if name else folder
        done = finished(cell, where)
        if done is not None:
            summaries.append(done)
            continue
        label = f"{name}, cell {number} of {len(cells)}" if name else cell.algorithm.name
        outcome, summary = run_cell(cell, where, label=label, grid=grid, overrides=overrides)
        summaries.append(summary)
        problem, stopped = outcome.error or problem, outcome.stopped
        # Engine and what it calls back refer to each other, and keep all of the run's vectors.
        del outcome
        gc.collect()
        if stopped == "interrupted":
            problem = Interrupted(f"interrupted; what was done so far lies in {folder}")
            break
    figures = not isinstance(problem, Interrupted)  # who pressed Ctrl-C does not wait for them
    table = report.write_report(folder, target, figures=figures, shared=shared)
    report.print_table(table)
    print(f"Files{', table and figures' if figures else ' and table'}: {folder}")
    print(f"Report, to open in a browser: {folder / report.PAGE}")
    if problem is not None:
        raise problem
    if "" not in cells:
        print(f"All {len(cells)} cells are done")
    return summaries


def run_cell(
    config: DictConfig,
    folder: Path,
    *,
    label: str,
    grid: "Grid | None" = None,
    overrides: Sequence[str] = (),
) -> tuple[Outcome, dict[str, Any]]:
    """One run; writes its five files into `folder`, also when it ends early.

    Returns:
        What the engine reports, and the contents of ``summary.json``.

    Raises:
        ValueError: the configuration is refused, or a checkpoint that is to be gone on with.
    """
    asked = deepcopy(config)  # devices tell it how many local epochs a transfer takes
    if config.runtime.name != "deployment":
        prepare_process()
    task = build_task(config)
    if config.experiment.scale == "smoke" and isinstance(task, Task):
        task = replace(
            task,
            test_inputs=task.test_inputs[:SMOKE_TESTS],
            test_targets=task.test_targets[:SMOKE_TESTS],
        )
    trainer = build_trainer(config, task)
    devices = build_devices(config, trainer)
    real = config.runtime.name == "deployment"
    checkpoints = Checkpoints(folder, settings(asked))
    kept = checkpoints.load() if config.resume == "auto" else None
    if kept is not None:
        check_complete(kept["engine"])
    origin = provenance(overrides, kept and kept.get("provenance"))
    folder.mkdir(parents=True, exist_ok=True)
    history = History(joules=None if devices is None else devices.joules)
    # Before the file is locked: a process loses its lock when it closes any handle of the file.
    for event in read_events(folder / "events.jsonl", kept["lines"] if kept else 0):
        history.emit(event)
    # First of the sinks, for it refuses a folder in which another process runs.
    lines = JsonLines(folder / "events.jsonl", keep=kept and kept["lines"])
    if kept is None:
        checkpoints.clear()  # of an earlier run in this folder
    # Of the run before: if this one is killed, it must not be taken for the end of this one.
    (folder / "summary.json").unlink(missing_ok=True)
    OmegaConf.save(asked, folder / "config.yaml", resolve=True)
    num_clients = None if real else config.num_clients  # on nodes, as many as join
    columns = partial(metrics.columns, history, num_clients)
    table = Metrics(folder / "metrics.csv", columns, keep=kept and kept["table"])
    # The others read the history, so it takes in every event first.
    sinks: list[Sink] = [history, lines, table, Progress(history, config.num_versions, label)]
    recorder: Recorder | None = None
    if real:
        recorder = Recorder(folder / "devices.csv", history, keep=kept and kept["devices"])
        sinks.append(recorder)
    if config.tensorboard is True or (config.tensorboard == "auto" and real):
        board = TensorBoard(folder / "tensorboard", history, lambda: engine.clients, columns)
        sinks.append(board)
        print(f"To watch: tensorboard --logdir {folder}")
    token = kept["token"] if kept else secrets.token_hex(8)
    began = time.monotonic() - (kept["wall_seconds"] if kept else 0.0)

    def checkpoint(version: int) -> None:
        with undisturbed():
            state = {
                "engine": engine.snapshot(),
                "lines": lines.position(),
                "table": table.position(),
                "token": token,
                "provenance": origin,
                "devices": recorder and recorder.position(),
                "wall_seconds": time.monotonic() - began,
            }
            checkpoints.save(version, state)

    with ExitStack() as stack:
        for sink in reversed(sinks):
            stack.callback(sink.close)  # also if another one cannot be closed
        engine, layout = build_engine(
            config, trainer, devices, sinks=sinks, checkpoint=checkpoint, grid=grid, run=token
        )
        with closing(engine):
            if kept is not None:
                engine.restore(kept["engine"])
                print(f"{label}: goes on from version {engine.version}")
            with interruptible(engine.stop) as undisturbed:
                outcome = engine.run()
    wall_seconds = time.monotonic() - began
    summary = summarise(config, trainer.task, outcome, history, num_clients, wall_seconds) | origin
    results.write(folder, layout.named(outcome.params), summary)
    return outcome, summary


def settings(config: DictConfig) -> dict[str, Any]:
    """What must be the same for a run to go on: all but how it is carried out and watched."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    same = {str(k): v for k, v in plain.items() if k not in ("resume", "runtime", "tensorboard")}
    return {**same, "virtual": config.runtime.name != "deployment"}


def finished(config: DictConfig, folder: Path) -> dict[str, Any] | None:
    """The summary of a cell that was run to its end before; None if it is to be run.

    Raises:
        ValueError: what was run there had another configuration.
    """
    path = folder / "summary.json"
    if config.resume != "auto" or not path.exists():
        return None
    summary: dict[str, Any] = json.loads(path.read_text())
    if summary["stopped"] not in ENDS:
        return None
    before = OmegaConf.load(folder / "config.yaml")
    assert isinstance(before, DictConfig)
    differences = different(settings(before), settings(config))
    if differences:
        raise ValueError(
            f"resume=auto: {folder} holds a run of another configuration "
            f"({', '.join(differences[:5])}); choose another folder, or resume=null to replace it"
        )
    return summary


def summarise(
    config: DictConfig,
    task: TrainingTask,
    outcome: Outcome,
    history: History,
    num_clients: int | None,
    wall_seconds: float,
) -> dict[str, Any]:
    """The contents of ``summary.json``: what was run, and what it came to.

    To the keys below come those of `results.of_outcome`.
    """
    return {
        "algorithm": config.algorithm.name,
        "task": task.name,
        "data": task.source,
        "seed": config.seed,
        "num_clients": config.num_clients,
        **results.of_outcome(
            outcome, history, num_clients, wall_seconds, config.experiment.report_accuracy
        ),
    }
