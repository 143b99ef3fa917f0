"""One run, from configuration to files."""

import logging
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig

from fl_app.client.build import build_task, complete_task, prepare_process
from fl_app.core.bugs import traceback_of
from fl_app.core.errors import ServerError
from fl_app.core.events import Sink
from fl_app.core.files import require_writable
from fl_app.engine.engine import Outcome
from fl_app.record.folder import SCHEMA, RunFolder
from fl_app.record.history import History
from fl_app.record.progress import Progress
from fl_app.runner import earlier
from fl_app.runner.checkpoint import Checkpoints
from fl_app.runner.components import build_components
from fl_app.runner.factory import build_engine
from fl_app.runner.signals import interruptible
from fl_app.runner.validate import NO_OBJECTS, UserObjects, work_decider

if TYPE_CHECKING:
    from flwr.serverapp import Grid


log = logging.getLogger(__name__)

FAULT = "%s: an error in the code of the strategy, the schedule or the evaluation:\n%s"


class Plan(NamedTuple):
    """A run to carry out.

    Attributes:
        config: accepted by `fl_app.runner.validate.validate_config`.
        overrides: the user's.
        objects: objects in place of parts of the configuration.
    """

    config: DictConfig
    overrides: Sequence[str] = ()
    objects: UserObjects = NO_OBJECTS


def run_cell(
    plan: Plan,
    folder: Path,
    *,
    label: str,
    grid: "Grid | None" = None,
    show: bool = True,
) -> tuple[Outcome, dict[str, Any]]:
    """Carry out one run and write its files into `folder`, also when the run ends early.

    Args:
        plan: of the run.
        folder: for the files.
        label: name of the run, for the console.
        grid: of the ServerApp, for the runtimes that need one.
        show: whether to show progress.

    Returns:
        The engine's outcome, and the contents of ``summary.json``.

    Raises:
        ValueError: the configuration is refused, or the checkpoint to resume from. No file has
            changed. The caller has checked that the configuration is the checkpoint's
            (`fl_app.runner.earlier.enter`).
    """
    config, objects = plan.config, plan.objects
    live = config.runtime.name == "deployment"
    if not live:
        prepare_process()
    task = build_task(config) if objects.task is None else complete_task(config, objects.task)
    score = task.objective.score
    components = build_components(config, task, objects)
    model = components.trainer.model
    checkpoints = Checkpoints(folder)
    stored = checkpoints.load() if config.resume == "auto" else None
    if stored is not None:
        earlier.refuse_other_frozen(model.differing(stored.get("frozen", [])), folder)
    token = stored["token"] if stored else secrets.token_hex(8)
    devices = components.devices
    history = History(joules=None if devices is None else devices.joules)
    saved = stored and stored["files"]
    files = RunFolder(folder, history, overrides=plan.overrides, saved=saved, live=live)
    # The other sinks read the history, so it is the first to receive an event.
    sinks: list[Sink] = [history]

    def checkpoint(version: int) -> None:
        with uninterrupted():
            state = {
                "engine": engine.state_dict(),
                "files": files.state_dict(),
                "token": token,
            }
            if model.traces:  # of values that are not in the state
                state["frozen"] = model.traces
            checkpoints.save(version, state)

    with ExitStack() as stack:
        # Before a file is opened, because this may refuse the configuration.
        engine = build_engine(components, sinks=sinks, checkpoint=checkpoint, grid=grid, run=token)
        stack.enter_context(closing(engine))
        if stored is not None:
            engine.load_state_dict(stored["engine"])
            if show:
                print(f"{label}: goes on from version {engine.version}")
        with require_writable(folder):
            files.lock()  # before anything changes that a run of another process needs
        stack.callback(files.close)
        central = task.num_clients == config.num_clients  # else only the nodes know their examples
        files.begin(config, (task.classes()[1], task.class_counts()) if central else None)
        if task.schema is not None:  # for programs that use the model later
            (folder / SCHEMA).write_text(task.schema.to_json(), encoding="utf-8")
        sinks.append(files)
        if show:
            limits = (config.num_versions, config.max_updates, config.max_seconds)
            progress = Progress(history, label, limits, score=score)
            stack.callback(progress.close)
            sinks.append(progress)
        uninterrupted = stack.enter_context(interruptible(engine.ask_to_stop))
        outcome = engine.run()
        cause = outcome.error and outcome.error.__cause__
        if isinstance(outcome.error, ServerError) and isinstance(cause, Exception):
            log.error(FAULT, label, traceback_of(cause))
        client = config.algorithm.client
        decider = work_decider(components.strategy, components.schedule, client, outcome.ordered)
        work = f"by {decider}" if decider else components.trainer.work_per_update
        facts: dict[str, Any] = {
            "algorithm": config.algorithm.name,
            "task": task.name,
            "seed": config.seed,
            "num_clients": config.num_clients or len(history.sequences),
            **({"made_up": True} if config.task.get("made_up") else {}),
            "work_per_update": work,
        }
        if client.private:
            facts["private"] = list(client.private)
        if live:
            facts["without_update"] = sorted({*history.sequences} - {*history.arrivals})
        arrays = model.named(outcome.params)
        target = config.experiment.report_accuracy
        with uninterrupted():  # Ctrl-C comes too late
            return outcome, files.finish(outcome, arrays, facts, target, score)
