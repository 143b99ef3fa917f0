"""One run, or the cells of an experiment, from configuration to files."""

import gc
import math
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from fl_app import report
from fl_app.client.build import build_task, prepare_process
from fl_app.core.errors import Interrupted, RunError
from fl_app.core.events import Sink
from fl_app.core.files import disk_errors_as_run_errors, open_log, require_writable
from fl_app.engine.engine import Outcome, check_complete
from fl_app.record.folder import EVENTS, RunFolder
from fl_app.record.history import History
from fl_app.record.log import read_events
from fl_app.record.progress import Progress
from fl_app.record.tensorboard import TensorBoard
from fl_app.run import earlier
from fl_app.run.checkpoint import Checkpoints
from fl_app.run.factory import build_components, build_engine
from fl_app.run.signals import interruptible
from fl_app.run.validate import checked_cells
from fl_app.tasks.task import Task

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
        cells: as `fl_app.run.validate.checked_cells` gives them, if that was asked before.

    Returns:
        The summaries, one a cell.

    Raises:
        ValueError: the configuration is refused; nothing was run.
        RunError: a run could not go on or was interrupted; its files and the report are written,
            unless the disk is full.
    """
    if cells is None:
        cells = checked_cells(config, overrides)
    earlier.refuse_held(folder, cells)
    done = {name: earlier.finished(cell, folder / name) for name, cell in cells.items()}
    with disk_errors_as_run_errors(folder):
        return _run(cells, done, overrides, folder, config.experiment.report_accuracy, grid, shared)


def _run(
    cells: Mapping[str, DictConfig],
    done: Mapping[str, dict[str, Any] | None],
    overrides: Sequence[str],
    folder: Path,
    target: float | None,
    grid: "Grid | None",
    shared: Path | None,
) -> list[dict[str, Any]]:
    summaries = []
    problem: RunError | None = None
    for number, (name, cell) in enumerate(cells.items(), 1):
        before = done[name]
        if before is not None:
            summaries.append(before)
            continue
        outcome, summary = run_cell(
            cell,
            folder / name,
            label=f"{name}, cell {number} of {len(cells)}" if name else cell.algorithm.name,
            grid=grid,
            overrides=overrides,
            experiment=folder if name else None,
        )
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
    experiment: Path | None = None,
) -> tuple[Outcome, dict[str, Any]]:
    """One run; writes its five files into `folder`, also when it ends early.

    Args:
        config: found good by `validate_config`.
        folder: for the files.
        label: what runs, for the console.
        grid: of the ServerApp, for the runtimes that need one.
        overrides: the user's.
        experiment: folder of the experiment whose cell this is.

    Returns:
        What the engine reports, and the contents of ``summary.json``.

    Raises:
        ValueError: the configuration is refused, or a checkpoint that is to be gone on with; no
            file has changed.
    """
    if config.runtime.name != "deployment":
        prepare_process()
    task = build_task(config)
    if config.experiment.scale == "smoke" and isinstance(task, Task):
        task = replace(
            task,
            test_inputs=task.test_inputs[:SMOKE_TESTS],
            test_targets=task.test_targets[:SMOKE_TESTS],
        )
    components = build_components(config, task)
    real = config.runtime.name == "deployment"
    checkpoints = Checkpoints(folder, earlier.settings(config))
    kept = checkpoints.load() if config.resume == "auto" else None
    if kept is not None:
        check_complete(kept["engine"])
        earlier.refuse_lower(earlier.limits(config), kept["limits"], kept["reached"], folder)
    token = kept["token"] if kept else secrets.token_hex(8)
    devices = components.devices
    history = History(joules=None if devices is None else devices.joules)
    # Before the file is locked: a process loses its lock when it closes any handle of the file.
    length = kept["files"]["lengths"][EVENTS] if kept else 0
    for event in read_events(folder / EVENTS, length):
        history.emit(event)
    files = RunFolder(
        folder,
        history,
        None if real else config.num_clients,  # on nodes, as many as join
        overrides=overrides,
        kept=kept and kept["files"],
    )
    # The others read the history, so it takes in every event first.
    sinks: list[Sink] = [history]

    def checkpoint(version: int) -> None:
        with undisturbed():
            state = {
                "engine": engine.state_dict(),
                "files": files.state_dict(),
                "token": token,
                "limits": earlier.limits(config),
                "reached": engine.reached,
            }
            try:
                checkpoints.save(version, state)
            except (RunError, TypeError) as error:
                if not engine.outcome.stopped:
                    raise
                # What the run came to is not given up for what may never be asked for.
                print(f"{label}: left no checkpoint, so it cannot be extended: {error}")

    with ExitStack() as stack:
        # Whatever may refuse the configuration does so before a file is opened.
        engine, layout = build_engine(
            components, sinks=sinks, checkpoint=checkpoint, grid=grid, run=token
        )
        stack.enter_context(closing(engine))
        if kept is not None:
            engine.load_state_dict(kept["engine"])
            print(f"{label}: goes on from version {engine.version}")
        with require_writable(folder):
            files.lock()  # before anything changes that a run of another process needs
        stack.callback(files.close)
        if experiment is not None and config.overwrite:
            _replace_run(experiment)
        if kept is None:
            earlier.clear(folder)
        files.begin(config, durations=real)
        progress = Progress(
            history,
            _unlimited(config.num_versions),
            label,
            updates=_unlimited(config.max_updates),
            seconds=_unlimited(config.max_seconds),
        )
        stack.callback(progress.close)
        sinks += [files, progress]
        if config.tensorboard is True or (config.tensorboard == "auto" and real):
            board = TensorBoard(
                folder / "tensorboard", history, lambda: engine.clients, files.columns
            )
            stack.callback(board.close)
            sinks.append(board)
            print(f"To watch: tensorboard --logdir {folder}")
        with interruptible(engine.stop) as undisturbed:
            outcome = engine.run()
    about = {
        "algorithm": config.algorithm.name,
        "task": task.name,
        "data": task.source,
        "seed": config.seed,
        "num_clients": config.num_clients,
    }
    model = layout.named(outcome.params)
    return outcome, files.finish(outcome, model, about, config.experiment.report_accuracy)


def _replace_run(folder: Path) -> None:
    """Remove the run that lies in the folder of an experiment: the report would be of it alone."""
    events = folder / EVENTS
    if events.exists():
        with open_log(events, 0):  # refused where somebody writes to it
            earlier.clear(folder)
            events.unlink()
    else:
        earlier.clear(folder)


def _unlimited(value: float | None) -> float:
    return math.inf if value is None else value
