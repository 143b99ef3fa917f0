"""Evaluation of the global model on the server's test set."""

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from fl_app.core.errors import require
from fl_app.core.types import Vector
from fl_app.engine.outbox import Evaluate, Metrics
from fl_app.engine.workers import computing

if TYPE_CHECKING:
    from fl_app.client import LocalTrainer
    from fl_app.client.flat import FlatModel
    from fl_app.tasks.task import Task

log = logging.getLogger(__name__)


def measuring(
    model: "FlatModel", test: Callable[[Any], Metrics], beside: Executor | None = None
) -> Evaluate:
    """What measures a version of a model, when the one before is measured.

    Args:
        model: of the layout of the versions (`fl_app.client.flat.FlatModel`).
        test: maps a module to metrics.
        beside: measures while the caller goes on; None = the caller waits.
    """

    def measured() -> Metrics:
        with computing:
            return test(model.module)

    def measure(version: int, vector: Vector) -> Metrics | Future[Metrics]:
        model.load(vector)
        model.load_private({})  # a server has none of the clients'
        return test(model.module) if beside is None else beside.submit(measured)

    return measure


def build_evaluation(trainer: "LocalTrainer", config: DictConfig, workers: int) -> Evaluate | None:
    """Evaluation on the server's test set; None if there is none.

    Beside worker processes, a thread of this process evaluates, so that no worker waits for it.

    Args:
        trainer: of this process.
        config: of the run.
        workers: worker processes.

    Raises:
        ValueError: a key asks for a metric that the task does not have.
    """
    task = trainer.task
    _check(task, config)
    if not task.has_test_set:
        return None
    if not config.runtime.get("train", True):
        return lambda version, vector: {}
    if workers == 0:
        return measuring(trainer.model, _test(task, config))
    from fl_app.client.initial import build_model

    model = build_model(task, config.seed, trainer.device, private=trainer.private)
    return measuring(model, _test(task, config), ThreadPoolExecutor(1))


def _test(task: "Task", config: DictConfig) -> Callable[[Any], Metrics]:
    if not config.metrics:
        return task.test
    task.label_counts()  # refuses a task without single classes
    return partial(task.test, recall=True)


def _check(task: "Task", config: DictConfig) -> None:
    further, target = list(config.metrics), config.target_accuracy
    no_test_set = "" if task.has_test_set else f"task={task.name} has no test set"
    require(
        not (no_test_set and further),
        "metrics",
        further,
        "[]",
        f"{no_test_set}, on which they are measured",
    )
    on_clients = config.client_eval_every is not None
    if task.objective.score != "accuracy":
        unknown = f"task={task.name} measures no accuracy but {task.objective.score}"
    else:
        unknown = "" if on_clients else no_test_set
    require(
        target is None or not unknown,
        "target_accuracy",
        target,
        "null, with num_versions=, max_updates= or max_seconds= to end the run",
        unknown,
    )
    if no_test_set and not on_clients:
        log.warning("%s, and client_eval_every=null: no version is evaluated", no_test_set)
