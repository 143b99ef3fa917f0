"""Checks of a configuration, and the objects that need neither torch nor data.

A bad value is refused before torch is imported, which takes seconds.
"""

import math
import pkgutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from omegaconf import DictConfig, OmegaConf

from fl_app.client.build import (
    COMMON_KEYS,
    asks_for_masks,
    build_task,
    instantiate,
    locate,
    owners_decide,
    signature_of,
)
from fl_app.client.gpus import AUTO, resolve_device
from fl_app.client.settings import TrainingSettings
from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import require
from fl_app.core.hyper import COUNT
from fl_app.core.types import RESIDUAL
from fl_app.devices.table import read_table
from fl_app.engine.client_evaluation import ClientEvaluation
from fl_app.engine.guard import Guard
from fl_app.report import require_target
from fl_app.runner.cells import compose_cells, override_keys
from fl_app.runner.earlier import own_code
from fl_app.runner.settings import RUNTIMES, RunSettings, TaskSettings
from fl_app.schedule import Buffered, Schedule
from fl_app.schedule.routed import Routed
from fl_app.strategy import AsyncStrategy
from fl_app.targets import keys
from fl_app.tasks.encoding import inline_schema

if TYPE_CHECKING:
    from fl_app.client import LocalTrainer
    from fl_app.tasks.task import Task

SLOW_ARE_NAMED = ("Boards", "TwoSpeed")  # devices that say which clients are slow
PARTS = ("network", "availability", "energy", "server")  # of the devices, each with its own target


class UserObjects(NamedTuple):
    """Objects in place of parts of the configuration; None = the configuration decides.

    A run works on copies of strategy and schedule, so the same objects serve several runs.

    Attributes:
        task: in place of ``task`` and, if it has clients, of ``partition`` and ``num_clients``.
        strategy: in place of ``algorithm.strategy``.
        schedule: in place of ``algorithm.schedule``.
        trainer: in place of ``algorithm.client._target_``; called with the task, the keys of
            ``algorithm.client``, the seed and the device.
    """

    task: "Task | None" = None
    strategy: AsyncStrategy | None = None
    schedule: Schedule | None = None
    trainer: "Callable[..., LocalTrainer] | None" = None


NO_OBJECTS = UserObjects()


def checked_cells(config: DictConfig, overrides: Sequence[str]) -> dict[str, DictConfig]:
    """The cells of a run or an experiment, each validated and complete.

    Complete means: the contents of a schema's file take the place of its path, since nodes do not
    have the server's files; and the number of clients is known.

    Raises:
        ValueError: as `compose_cells`, `inline_schema`, `count_owners` and `validate_config`.
    """
    cells = {name: inline_schema(cell) for name, cell in compose_cells(config, overrides).items()}
    for cell in cells.values():
        count_owners(cell, override_keys(overrides))
        validate_config(cell)
    return cells


def count_owners(config: DictConfig, user_keys: Collection[str]) -> None:
    """Make each owner that the data name a client, unless the user sets the number of clients.

    Each client then has its owner's data.

    Args:
        config: of a run; changed.
        user_keys: keys that the user gave.

    Raises:
        ValueError: the task is refused, or the user chose another partition.
    """
    # A configured column has owners; whether files have owners, only the files say.
    by_owner = isinstance(config.task.get("client"), str) and "_target_" in config.partition
    if by_owner and not getattr(instantiate(config.partition), "by_owner", False):
        for key in user_keys:
            if key.partition(".")[0] == "partition":
                raise ValueError(
                    f"{key} must be left out with task.client={config.task.client}, whose owners "
                    "are the clients: it would change nothing"
                )
        natural = keys("target/fl_app.tasks.partition.Natural")
        OmegaConf.update(config, "partition", natural, merge=False)
    if owners_decide(config):
        config.num_clients = build_task(config).num_clients


def validate_config(config: DictConfig, objects: UserObjects = NO_OBJECTS) -> None:
    """Refuse a bad configuration before torch and data are loaded.

    Args:
        config: of a run.
        objects: objects in place of parts of it.

    Raises:
        ValueError: naming key, value, bound and consequence.
    """
    check_settings(config)
    real = config.runtime.name == "deployment"
    if config.experiment.report_accuracy is not None:
        require_target(config.experiment.report_accuracy, "experiment.report_accuracy")
    build_client_evaluation(config)
    _check(RUNTIMES[config.runtime.name], config.runtime)
    if config.runtime.device != AUTO:
        resolve_device(str(config.runtime.device))  # refuses what torch cannot use
    if objects.task is None:
        instantiate(config.task, leave_out=COMMON_KEYS)
        if "schema" in config.task and config.task.get("path") is None and not real:
            raise ValueError(
                f"task.path=null must be the data with runtime={config.runtime.name}: only real "
                "nodes, with runtime=deployment, have data of their own"
            )
    strategy, schedule = build_strategy(config, objects), build_schedule(config, objects)
    # Every version takes at least one update, and some schedules always take K.
    size = schedule.buffer_size if isinstance(schedule, Buffered) else 1
    fits, effect = (config.max_updates or size) >= size, "no version would be published"
    bound = f"at least {size}, the updates of a version (algorithm.schedule.buffer_size)"
    require(fits, "max_updates", config.max_updates, bound, effect)
    limits = (config.num_versions, config.max_updates and config.max_updates // size)
    max_versions = min((limit for limit in limits if limit is not None), default=math.inf)
    strategy.validate_run(max_versions, schedule)
    upload, name = config.algorithm.client.upload, type(strategy).__name__
    bound = f"one of {', '.join(strategy.takes)} with {name}"
    effect = "its equations have no use for another upload"
    require(upload in strategy.takes, "algorithm.client.upload", upload, bound, effect)
    if config.algorithm.client.get("widths"):
        _check_widths(config, strategy, schedule)
    evaluates, share = config.client_eval_every is not None, config.client_eval_fraction
    bound = "1.0 without client_eval_every"
    require(evaluates or share == 1.0, "client_eval_fraction", share, bound, "no client evaluates")
    holdout, bound = config.task.holdout, "0 without client_eval_every"
    require(evaluates or not holdout, "task.holdout", holdout, bound, "nobody would use it")
    uses = [key for key in ("target_accuracy", "client_eval_every", "metrics") if config[key]]
    decider = work_decider(strategy, schedule, config.algorithm.client)
    uses += [name] * (RESIDUAL in strategy.takes or decider == name)
    fits, bound = config.runtime.get("train", True) or not uses, f"true with {', '.join(uses)}"
    effect = "untrained clients have nothing to measure, and no loss or change to send"
    require(fits, "runtime.train", "false", bound, effect)
    kept = OmegaConf.select(config, "compare.kept")
    if decider and kept is not None and "local work" not in kept:
        kept.append("local work")
    build_guard(config).validate_kinds(strategy.takes)
    if asks_for_masks(config):
        from fl_app.secure.run import validate_secure  # imported late, because few runs need it

        validate_secure(config, strategy, schedule)
    if "_target_" in config.partition:  # else a given task has clients of its own
        instantiate(config.partition)
    if not real:
        _check_devices(config)
    parts = [part for part in PARTS if part in config.devices]
    if parts and schedule.devices is not None:
        raise ValueError(
            f"algorithm/schedule=random_k draws how long orders take, so "
            f"devices/{parts[0]} would have no effect: leave it out with '~devices/{parts[0]}'"
        )
    if real and isinstance(schedule, Routed):
        raise ValueError(
            "algorithm/schedule=routed must be another one with runtime=deployment: its "
            "probabilities are those of simulated devices"
        )
    if "noise_seed" in config.algorithm.strategy:
        _check_noise(config)
    if config.num_clients is not None:  # else as many real nodes as connect
        schedule.validate_population(config.num_clients)
    if code := own_code(*_user_code(config, objects, strategy, schedule)):
        OmegaConf.update(config, "code", code, merge=False, force_add=True)  # to resume the same


def check_settings(config: DictConfig) -> None:
    """Check the settings of run, task and clients; devices can check these, too."""
    if config.num_clients is not None or config.runtime.name != "deployment":
        effect = "there would be nothing to run; with runtime=deployment real nodes are the clients"
        COUNT.check("num_clients", config.num_clients, effect)
    if difference := set(config.algorithm) ^ {"name", "strategy", "client", "schedule"}:
        raise ValueError(
            f"algorithm={config.algorithm.get('name')} must have name, strategy, client and "
            f"schedule: of its YAML, {', '.join(sorted(difference))} is missing or unknown"
        )
    _check(RunSettings, config)
    _check(TaskSettings, config.task)
    _check(TrainingSettings, config.algorithm.client)


def work_decider(
    strategy: Algorithm, schedule: Schedule, client: DictConfig, ordered: Collection[str] = ()
) -> str:
    """The class whose orders say how much clients train; "" = their settings do.

    Args:
        strategy: the server half of the algorithm.
        schedule: of the run.
        client: settings of the training.
        ordered: keys of the configs that the strategy has sent.
    """
    if client.upload == "gradient":
        return ""
    if type(schedule).work is not Schedule.work:
        return type(schedule).__name__
    chooses = strategy.chooses_epochs or "local_epochs" in ordered
    chooses = "local_steps" in ordered or (chooses and client.local_steps is None)
    return type(strategy).__name__ if chooses else ""


def _user_code(
    config: DictConfig, objects: UserObjects, strategy: AsyncStrategy, schedule: Schedule
) -> Iterator[object]:
    """Objects, classes and functions that may be the user's."""
    yield from (strategy, schedule)
    trainer = objects.trainer or config.algorithm.client.get("_target_")
    if not str(trainer).startswith("fl_app."):
        yield locate(trainer) if isinstance(trainer, str) else trainer
    nodes = (config.devices, *config.devices.values(), config.partition)
    targets = (node.get("_target_") for node in nodes if isinstance(node, DictConfig))
    yield from map(locate, filter(None, targets))
    if (task := objects.task) is not None:
        yield from (task, task.architecture, task.augment, task.objective, task.objective.criterion)
        return
    for path in (config.task.get("model"), config.task.get("loss")):
        if path and ":" in path:
            with suppress(Exception):  # building the task reports the error
                yield pkgutil.resolve_name(path)


def _check_widths(config: DictConfig, strategy: AsyncStrategy, schedule: Schedule) -> None:
    """Refuse sub-models where they cannot be assigned, measured or aggregated."""
    algorithm, period = config.algorithm.name, config.client_eval_every
    devices = config.devices.get("_target_", "").rpartition(".")[2]
    real, number = config.runtime.name == "deployment", config.num_clients
    ways, unknown = "fedbuff, fedhist or cana", "nobody knows which clients are slow"
    unopened = "the server does not know which entries are in a sum of uploads"
    extra, cut = strategy.order_extra or strategy.upload_extra, "one without further vectors"
    for fits, key, value, bound, effect in (
        (strategy.cuts, "algorithm", algorithm, ways, "others take every entry from every update"),
        (not extra, "algorithm", algorithm, cut, "these have the whole model's shape"),
        (schedule.devices is None, "algorithm.schedule", "random_k", "another one", unknown),
        (devices in SLOW_ARE_NAMED or not real, "devices", devices, "boards or two_speed", unknown),
        (number is not None, "num_clients", number, "a number", unknown),
        (period is None, "client_eval_every", period, "null", "clients have a part of the model"),
        (not asks_for_masks(config), "secure_aggregation", "helper", "null", unopened),
    ):
        require(fits, key, value, f"{bound} with algorithm.client.widths", effect)


def _check_devices(config: DictConfig) -> None:
    """Construct (and so check) the parts of the devices that need neither model nor data."""
    if isinstance(table := OmegaConf.select(config, "devices.table"), str):
        read_table(table)  # before the server's, which is the same by default
    facts = {"num_clients": config.num_clients, "seed": config.seed}
    later = {"num_bytes", "upload_share", "num_examples", "mean_seconds"}
    for node in (config.devices, *map(config.devices.get, PARTS)):
        target = node and node.get("_target_")
        if target and later.isdisjoint(signature_of(locate(target)).parameters):
            instantiate(node, facts, leave_out=PARTS)


def _check(settings: type[Any], node: DictConfig) -> None:
    """Construct (and so check) settings from the keys that they know."""
    settings(**{key: node[key] for key in signature_of(settings).parameters if key in node})


def build_strategy(config: DictConfig, objects: UserObjects = NO_OBJECTS) -> AsyncStrategy:
    """The server half of the algorithm: a copy of the given one, or the configured one."""
    return deepcopy(objects.strategy) or cast(AsyncStrategy, instantiate(config.algorithm.strategy))


def build_schedule(config: DictConfig, objects: UserObjects = NO_OBJECTS) -> Schedule:
    """A copy of the given schedule, or the configured one."""
    return deepcopy(objects.schedule) or cast(Schedule, instantiate(config.algorithm.schedule))


def _check_noise(config: DictConfig) -> None:
    """Refuse what spoils differential privacy: lengths before the clip, known or repeated noise."""
    needed: dict[str, int | None] = {"guard.max_norm": None, "guard.max_norm_ratio": None}
    if config.runtime.name == "deployment":
        needed |= {"algorithm.strategy.noise_seed": None, "checkpoint_every": 1}
    effect = "the noise would hide less than epsilon says"
    for key, only in needed.items():
        value = OmegaConf.select(config, key)
        require(value == only, key, value, f"{only or 'null'} with noise", effect)


def build_guard(config: DictConfig) -> Guard:
    """The configured checks of uploads."""
    guard = Guard(**cast(dict[str, Any], OmegaConf.to_container(config.guard)))
    guard.kind = config.algorithm.client.upload
    return guard


def build_client_evaluation(config: DictConfig) -> ClientEvaluation:
    """The configured evaluations on clients."""
    return ClientEvaluation(config.client_eval_every, config.client_eval_fraction, config.seed)
