"""What a server needs besides its components: clock, mailbox, evaluation and engine.

A node needs `fl_app.client.build` alone.
"""

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from omegaconf import DictConfig, OmegaConf

from fl_app.client.build import asks_for_masks, instantiate, together
from fl_app.client.untrained import Untrained
from fl_app.core.errors import require
from fl_app.core.events import Sink
from fl_app.core.types import Order, Vector
from fl_app.engine.checks import require_keepable
from fl_app.engine.clock import Clock, Mailbox
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.guard import Intake
from fl_app.engine.outbox import Evaluate, Metrics
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.wall import WallClock
from fl_app.engine.workers import Inline, Workers, computing
from fl_app.flower import names, patches
from fl_app.flower.grid import AnyNode, GridMailbox
from fl_app.runner.components import Components
from fl_app.runner.validate import build_client_evaluation, build_guard

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from fl_app.client import LocalTrainer
    from fl_app.tasks.task import Task

log = logging.getLogger(__name__)


def server_gradient(trainer: "LocalTrainer") -> Callable[[Vector, int, int, int], Vector]:
    """The gradient of a mini-batch of the server's examples, which are drawn from all clients'.

    Args:
        trainer: of the run's clients; its model, which every order loads anew, is used, too.

    Returns:
        A function of parameters ``(d,)``, version, number of the server's examples and size of a
        mini-batch, which depends on seed and version; it returns the gradient ``(d,)``.
    """
    from fl_app.client import LocalTrainer  # needs torch

    task, server = trainer.task, copy(trainer)
    server.upload, server_id = "gradient", task.num_clients

    def gradient(params: Vector, version: int, server_examples: int, batch_size: int) -> Vector:
        if server.task is task:
            pool = np.concatenate(task.partition)
            rng = np.random.default_rng((server.seed, server_id))
            examples = rng.choice(pool, min(server_examples, pool.size), replace=False)
            server.task = replace(task, partition=[*task.partition, examples])
            server.batch_size = batch_size
        order = Order(0, server_id, version, version, params, {}, 0.0)
        server.model.load_private({})  # their first values, as in the server's test
        return LocalTrainer.train(server, order).vector  # clients may do more, such as pause

    return gradient


def build_engine(
    components: Components,
    *,
    sinks: Sequence[Sink],
    checkpoint: Callable[[int], None] | None = None,
    grid: "Grid | None" = None,
    run: str = "",
) -> Engine:
    """The engine with all that it drives.

    Args:
        components: of the run.
        sinks: receive the events; the list may grow until the engine runs.
        checkpoint: called with the version whenever a checkpoint is due.
        grid: of the ServerApp, for the runtimes that need one.
        run: letters and digits that identify the run on real nodes, also after it was resumed;
            "" = Flower's run id.

    Raises:
        ValueError: a value is refused.
    """
    config, trainer, strategy = components.config, components.trainer, components.strategy
    layout = trainer.model.layout
    if config.runtime.name != "deployment":
        strategy.prepare(server_gradient(trainer))
    if note := strategy.memory_cost(layout.num_trainable, config.num_clients or 0):
        log.info(note)
    if checkpoint is not None:
        require_keepable(strategy, components.schedule)
    intake = Intake()
    if asks_for_masks(config):
        from fl_app.secure.run import build_intake  # imported late, because few runs need it

        intake = build_intake(config, strategy, components.schedule, layout.size, run)
    return Engine(
        strategy=strategy,
        schedule=components.schedule,
        # Before the clock: if these refuse a value, no process must stay behind.
        evaluate=_evaluation(components),
        client_evaluation=build_client_evaluation(config),
        guard=build_guard(config),
        initial=trainer.model.read(),
        clock=_clock(components, grid, run),
        num_trainable=layout.num_trainable,
        stop=Stop(
            num_versions=_unlimited(config.num_versions),
            seconds=_unlimited(config.max_seconds),
            target_accuracy=_unlimited(config.target_accuracy),
            updates=_unlimited(config.max_updates),
        ),
        eval_every=config.eval_every,
        tolerates=config.failures == "tolerate" or config.runtime.name == "deployment",
        intake=intake,
        upload_bytes=components.upload_bytes,
        checkpoint=checkpoint,
        checkpoint_every=config.checkpoint_every,
        sinks=sinks,
        seed=config.seed,
    )


def _evaluation(components: Components) -> Evaluate | None:
    """Evaluation on the server's test set; None if there is none.

    With worker processes, a thread of this process evaluates, so that no worker waits.

    Raises:
        ValueError: a key asks for a metric that the task does not have.
    """
    config, trainer = components.config, components.trainer
    task = trainer.task
    _check_measures(task, config)
    if not task.has_test_set:
        return None
    if not config.runtime.get("train", True):
        return lambda version, vector: {}
    test = task.test
    if config.metrics:
        task.label_counts()  # refuses a task without single classes
        test = partial(test, recall=True)
    model, pool = trainer.model, None
    if components.workers:
        from fl_app.client.initial import build_model

        model = build_model(task, config.seed, trainer.device, private=trainer.private)
        pool = ThreadPoolExecutor(1)

    def metrics() -> Metrics:
        with computing:
            return test(model.module)

    def measure(version: int, vector: Vector) -> Metrics | Future[Metrics]:
        model.load(vector)
        model.load_private({})  # a server has none of the clients'
        return pool.submit(metrics) if pool else metrics()

    return measure


def _check_measures(task: "Task", config: DictConfig) -> None:
    metrics, target = list(config.metrics), config.target_accuracy
    no_test_set = "" if task.has_test_set else f"task={task.name} has no test set"
    effect = f"{no_test_set}, on which they are measured"
    require(not (no_test_set and metrics), "metrics", metrics, "[]", effect)
    on_clients = config.client_eval_every is not None
    if task.objective.score.name != "accuracy":
        unknown = f"task={task.name} measures no accuracy but {task.objective.score.name}"
    else:
        unknown = "" if on_clients else no_test_set and f"{no_test_set}, nor client_eval_every"
    bound = "null, with num_versions=, max_updates= or max_seconds= to end the run"
    require(target is None or not unknown, "target_accuracy", target, bound, unknown)
    if no_test_set and not on_clients:
        log.warning("%s, and client_eval_every=null: no version is evaluated", no_test_set)


def _clock(components: Components, grid: "Grid | None", run: str) -> Clock:
    config, trainer, schedule = components.config, components.trainer, components.schedule
    deadline = _unlimited(config.deadline)
    settings: dict[str, object] = {names.APP_CONFIG: OmegaConf.to_yaml(config, resolve=True)}
    if trainer.model.traces:
        settings[names.FROZEN] = trainer.model.traces
    if config.runtime.name == "deployment":
        assert grid is not None
        if patches.tried():
            patches.pull_sooner()
        if run:
            settings[names.RUN] = run
        mailbox = GridMailbox(grid, trainer.model.layout, train_config=settings, deadline=deadline)
        return WallClock(mailbox, deadline=deadline)
    if schedule.devices is not None and (trainer.pauses or trainer.overlaps):
        raise ValueError(
            f"algorithm/schedule=random_k knows how long an order takes, and not its parts: "
            f"algorithm={config.algorithm.name} needs devices, and another schedule"
        )

    def steps(client_id: int) -> int:
        return trainer.lengths(trainer.task.train_indices(client_id).size, {})[1]

    devices = schedule.devices or components.devices
    assert devices is not None
    availability, server = (config.devices.get(part) for part in ("availability", "server"))
    return VirtualClock(
        devices=devices,
        num_clients=config.num_clients,
        deadline=deadline,
        seed=config.seed,
        availability=availability and instantiate(availability, {"seed": config.seed}),
        epochs=trainer.epochs,
        counts_epochs=trainer.local_steps is None and schedule.devices is None,
        steps=None if schedule.devices or trainer.upload == "gradient" else steps,
        pauses=trainer.pauses,
        # A schedule that decides how long orders take does not know their parts.
        evaluation_share=None if schedule.devices else trainer.evaluation_share,
        server=server and instantiate(server),
        mailbox=_mailbox(components, grid, settings),  # last, so that an error leaves no process
    )


def _mailbox(components: Components, grid: "Grid | None", settings: dict[str, object]) -> Mailbox:
    runtime, trainer = components.config.runtime, components.trainer
    layout = trainer.model.layout
    if grid is not None and runtime.name == "flower":
        return AnyNode(grid, layout, train_config=settings)
    if runtime.name == "ray":
        from fl_app.cluster.mailbox import build_cluster_mailbox  # imported late, like secure

        return build_cluster_mailbox(components)
    if not runtime.get("train", True):
        return Inline(Untrained(trainer, components.strategy.upload_extra))
    executor = together(components.config, trainer, runtime.batch)
    if not components.workers:
        return Inline(executor)
    vectors = 1 + len(components.strategy.upload_extra)
    return Workers(executor, components.workers, layout.size, vectors=vectors)


def _unlimited(value: float | None) -> float:
    return math.inf if value is None else value
