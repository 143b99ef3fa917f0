"""From the settings of a run, overrides and objects, to its plan."""

import inspect
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from omegaconf import DictConfig, OmegaConf

from fl_app.cli import CONF, compose
from fl_app.client.build import COMMON_KEYS, locate
from fl_app.core.errors import require
from fl_app.runner.cell import Plan
from fl_app.runner.cells import equalise, override_keys
from fl_app.runner.validate import UserObjects, count_owners, validate_config
from fl_app.schedule import Schedule
from fl_app.strategy import AsyncStrategy
from fl_app.strategy.strategy import described

if TYPE_CHECKING:
    from fl_app.client import LocalTrainer
    from fl_app.tasks.task import Task

Setting: TypeAlias = Union[str, AsyncStrategy, Schedule, "Callable[..., LocalTrainer]"]

BASE = "fedbuff"  # its client trains for strategies that are not of `fl_app.algorithms`

# Keys of the command line that Python replaces, except ALLOWED.
ALLOWED = ("experiment.report_accuracy", "hydra.searchpath")
REMEDIES = {
    "hydra": "give the folder as output=",
    "experiment": "compare runs with fl_app.compare",
}


def plan_of(
    settings: Sequence[Setting], task: "Task | None" = None, seed: int | None = None
) -> Plan:
    """The plan of a run; data are loaded only to count their owners.

    Args:
        settings: in any order: overrides, as on the command line; a strategy, in place of
            ``algorithm=``; a schedule, in place of ``algorithm/schedule=``; a trainer, that is a
            subclass of `fl_app.client.LocalTrainer` or a function that makes one.
        task: in place of ``task=`` and, if it has clients, of ``partition=`` and ``num_clients=``.
        seed: of a run of a comparison; None = that of the settings.

    Raises:
        ValueError: a setting is refused.
    """
    overrides = [setting for setting in settings if isinstance(setting, str)]
    if seed is not None:
        _refuse(overrides, "seed", "give the seeds as seeds=[...]")
        overrides.append(f"seed={seed}")
    objects: dict[str, Any] = {}
    for setting in settings:
        if not isinstance(setting, str):
            kind = _kind_of(setting)
            require(kind not in objects, kind, setting, "given once", "one would be ignored")
            objects[kind] = setting
    for word in overrides:
        bound = "an override, such as hydra.searchpath=[file:///DIR]"
        require(not word.startswith("-"), "settings", word, bound, "it is an option")
    for key, remedy in REMEDIES.items():
        _refuse([word for word in overrides if _key(word) not in ALLOWED], key, remedy)
    if task is not None:
        from fl_app.tasks.task import Task  # loads torch, which a task has loaded

        kind, effect = type(task).__name__, "runs need its data, model and objective"
        require(isinstance(task, Task), "task", kind, "a fl_app.Task or of a subclass", effect)
        common = {f"task.{key}" for key in COMMON_KEYS}
        task_overrides = [override for override in overrides if _key(override) not in common]
        for key in ("task", *(("partition", "num_clients") if task.num_clients else ())):
            _refuse(task_overrides, key, f"leave it out, because task= is an object ({task.name})")
    strategy: AsyncStrategy | None = objects.get("strategy")
    if strategy is not None:
        name = type(strategy).__name__
        if any(_key(override) == "algorithm" for override in overrides):
            raise ValueError(f"{name} and algorithm= are two algorithms: leave out one")
        _refuse(overrides, "algorithm.strategy", f"give it to the object, as {name}(...)")
        # The schedule of an option is that of its class, and fits the number of clients.
        as_option = _option(strategy) and "schedule" not in vars(strategy)
        if not as_option and not _first(overrides, "algorithm.schedule"):
            objects.setdefault("schedule", strategy.schedule)
    for kind, key in (("schedule", "algorithm.schedule"), ("trainer", "algorithm.client._target_")):
        if kind in objects:
            _refuse(overrides, key, f"leave it out, because the {kind} is an object")
    if strategy is None:
        config = compose(overrides)
    else:
        config = compose([f"algorithm={_option(strategy) or BASE}", *overrides])
        client = config.algorithm.client  # trains and uploads what the strategy can use
        client._target_ = strategy.needs or client._target_
        if client.upload not in strategy.takes and not _first(overrides, "algorithm.client.upload"):
            client.upload = strategy.takes[0]
    user_objects = UserObjects(task=task, **objects)
    if config.runtime.name not in ("inprocess", "ray"):
        raise ValueError(
            f"runtime={config.runtime.name} must be inprocess or ray here: its nodes build "
            "everything from a configuration, and no object reaches them; name task and algorithm "
            "in the overrides of `flwr run`"
        )
    user_keys, trainer = override_keys(overrides), objects.get("trainer")
    needed, given = config.algorithm.client._target_, getattr(trainer, "func", trainer)
    if isinstance(given, type) and not issubclass(given, locate(needed)):
        raise ValueError(f"{given.__name__} must be a subclass of {needed}, the algorithm's own")
    for name, value in _own_values(trainer).items():
        if name in config.algorithm.client and f"algorithm.client.{name}" not in user_keys:
            config.algorithm.client[name] = value
    equalise(config, user_keys, own_schedule="schedule" in objects)
    _describe(config, user_objects)
    count_owners(config, user_keys)
    validate_config(config, user_objects)
    return Plan(config, overrides, user_objects)


def _own_values(trainer: Any) -> dict[str, Any]:
    """What a trainer sets: a partial's keywords, and the defaults that its own classes declare."""
    own = dict[str, Any]()
    for cls in reversed(getattr(getattr(trainer, "func", trainer), "__mro__", ())):
        if not cls.__module__.startswith(("fl_app.", "builtins")):
            own |= vars(cls)
            if "__init__" in vars(cls) and "__dataclass_fields__" not in vars(cls):
                parameters = inspect.signature(cls).parameters.values()
                own |= {p.name: p.default for p in parameters if p.default is not p.empty}
    return own | getattr(trainer, "keywords", {})


def drop_overridden(common: Sequence[Setting], own: Sequence[Setting]) -> list[Setting]:
    """The common settings, without those whose key the run's own settings also have."""
    keys = {_key(setting) for setting in own if isinstance(setting, str)}
    return [each for each in common if not isinstance(each, str) or _key(each) not in keys]


def _kind_of(setting: object) -> str:
    """The kind of an object: "strategy", "schedule" or "trainer"."""
    if isinstance(setting, AsyncStrategy):
        return "strategy"
    name = getattr(setting, "__name__", type(setting).__name__)
    if inspect.isclass(setting) and {"aggregate_train", "min_clients"} & {*dir(setting)}:
        raise ValueError(f"{name} must be an object, such as {name}(): it is a class")
    if hasattr(setting, "aggregate_train"):  # Flower's own
        raise ValueError(
            f"{name} must be an AsyncStrategy: wrap it as "
            f"fl_app.asynchronous.Asynchronous({name}(...))"
        )
    if Schedule in type(setting).__mro__:
        return "schedule"
    if callable(setting) and not hasattr(setting, "train_indices"):
        return "trainer"
    raise ValueError(
        f"{setting!r} must be an override (a string), a strategy, a schedule or a trainer's class; "
        "a task is given as task="
    )


def _option(strategy: AsyncStrategy) -> str:
    """The option of ``algorithm=`` of a strategy's class; empty if it has none."""
    name = strategy._label
    is_ours = type(strategy).__module__.startswith("fl_app.algorithms.")
    return name if is_ours and (CONF / "algorithm" / f"{name}.yaml").is_file() else ""


def _key(override: str) -> str:
    """The dotted key of an override."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".")


def _first(overrides: Sequence[str], key: str) -> str:
    """The first override of a key or of one below it; empty if there is none."""
    return next((word for word in overrides if f"{_key(word)}.".startswith(f"{key}.")), "")


def _refuse(overrides: Sequence[str], key: str, remedy: str) -> None:
    if override := _first(overrides, key):
        raise ValueError(f"{override} has no effect here: {remedy}")


def _describe(config: DictConfig, objects: UserObjects) -> None:
    """Describe the objects in `config`, for ``config.yaml`` and to check a run that resumes.

    Args:
        config: composed from ``conf/``; it is changed.
        objects: of the run.
    """
    if objects.task is not None:
        common = {key: config.task[key] for key in COMMON_KEYS if key in config.task}
        _put(config, "task", {"data": objects.task.name, **common, **_examples(objects.task)})
        if objects.task.num_clients:
            _put(config, "partition", {"name": "of the task"})
            config.num_clients = objects.task.num_clients
    if objects.strategy is not None:
        _put(config, "algorithm.strategy", objects.strategy._settings())
        config.algorithm.name = objects.strategy._label
    if objects.schedule is not None:
        _put(config, "algorithm.schedule", described(objects.schedule))
    if objects.trainer is not None:
        _put(config, "algorithm.client._target_", described(objects.trainer))


def _examples(task: "Task") -> dict[str, Any]:
    """A checksum of data, model and clients: a run with others does not resume the files."""
    import torch  # checks of a configuration import this module, and not torch

    num_examples = checksum = 0
    for name in ("inputs", "targets", "test_inputs", "test_targets"):
        tensor = getattr(task, name)
        if tensor is not None:
            checksum = zlib.crc32(repr((name, tensor.shape, tensor.dtype)).encode(), checksum)
            checksum = zlib.crc32(tensor.contiguous().numpy().reshape(-1).view("u1"), checksum)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = task.model().state_dict()
    for name, tensor in state.items():
        checksum = zlib.crc32(repr((name, tensor.shape, tensor.dtype)).encode(), checksum)
    for client_id in range(task.num_clients):
        indices = task.train_indices(client_id)
        num_examples += indices.size
        checksum = zlib.crc32(indices.tobytes(), checksum)
    return {"num_examples": num_examples, "crc32": checksum}


def _put(config: DictConfig, key: str, value: Any) -> None:
    OmegaConf.update(config, key, value, merge=False, force_add=True)
