"""Configuration -> what needs neither torch nor data: strategy, schedule, guard, and the checks.

A value that is refused must not cost the seconds that importing torch takes.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from fl_app.bounds import check_training
from fl_app.cells import compose_cells
from fl_app.core.errors import require, require_at_least, require_positive
from fl_app.guard import Guard
from fl_app.metrics import PER_CLASS
from fl_app.schedule import RandomK, Schedule
from fl_app.strategy import AsyncStrategy

PARTS = ("network", "availability", "energy")  # of devices, each with a target of its own


def instantiate(node: DictConfig, facts: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Call what ``node._target_`` names with the node's other keys and `more`.

    A key that holds a node with a target of its own is given what that one makes.

    Args:
        node: of the configuration.
        facts: about the run, of which the target is told those that it has a parameter for.
        more: further arguments.

    Raises:
        ValueError: the target does not exist, does not know a key, or refuses a value.
    """
    settings = OmegaConf.to_container(node, resolve=True)
    assert isinstance(settings, dict)
    target = str(settings.pop("_target_"))
    module, _, name = target.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"_target_={target} cannot be imported: {error}") from error
    keywords = {
        str(key): instantiate(DictConfig(value)) if _has_target(value) else value
        for key, value in settings.items()
    }
    signature = inspect.signature(function)
    more |= {key: fact for key, fact in (facts or {}).items() if key in signature.parameters}
    try:
        signature.bind(**keywords, **more)
    except TypeError as error:
        raise ValueError(f"{target}: {error}, got {', '.join(keywords) or 'none'}") from error
    return function(**keywords, **more)


def checked_cells(config: DictConfig, overrides: Sequence[str]) -> dict[str, DictConfig]:
    """The cells of a run or an experiment as `compose_cells` gives them, each found good.

    Raises:
        ValueError: as `compose_cells` and `check`.
    """
    cells = compose_cells(config, overrides)
    for cell in cells.values():
        check(cell)
    return cells


def check(config: DictConfig) -> None:
    """Refuse a configuration with which no run could begin, before anything is loaded.

    Raises:
        ValueError: naming key, value, bound and consequence.
    """
    require(
        isinstance(config.seed, int) and config.seed >= 0,
        "seed",
        config.seed,
        "an integer >= 0",
        "random streams could not be made from it",
    )
    for key in ("num_clients", "num_versions", "eval_every"):
        require(
            isinstance(config[key], int) and config[key] >= 1,
            key,
            config[key],
            "an integer >= 1",
            "there would be nothing to run",
        )
    if config.max_seconds is not None:
        require_positive("max_seconds", config.max_seconds, "the run would end before it began")
    if config.deadline is not None:
        require_positive("deadline", config.deadline, "every order would be late")
    if config.target_accuracy is not None:
        require_at_least("target_accuracy", config.target_accuracy, 0, "it is a share of 1")
        require(
            config.target_accuracy <= 1,
            "target_accuracy",
            config.target_accuracy,
            "at most 1",
            "it is a share of 1, not a percentage",
        )
    if config.checkpoint_every is not None:
        require(
            isinstance(config.checkpoint_every, int) and config.checkpoint_every >= 1,
            "checkpoint_every",
            config.checkpoint_every,
            "an integer >= 1 or null",
            "it counts versions",
        )
    require(
        config.resume in (None, "auto"),
        "resume",
        config.resume,
        "auto or null",
        "a run goes on in its own folder or begins anew",
    )
    require(
        isinstance(config.tensorboard, bool) or config.tensorboard == "auto",
        "tensorboard",
        config.tensorboard,
        "true, false or auto",
        "nobody could say whether to write its files",
    )
    for name in config.metrics:
        require(name in PER_CLASS, "metrics", name, f"one of {', '.join(PER_CLASS)}", "unknown")
    require(
        config.secure_aggregation is False,
        "secure_aggregation",
        config.secure_aggregation,
        "false",
        "SecAgg+ needs rounds, in which a cohort answers several times together, and here nobody "
        "waits for anybody",
    )
    _check_runtime(config.runtime)
    build_strategy(config).check(config.num_versions, build_schedule(config))
    build_guard(config)
    known = inspect.signature(check_training).parameters
    check_training(**{str(key): v for key, v in config.algorithm.client.items() if key in known})
    parts = [part for part in PARTS if part in config.devices]
    if parts and isinstance(build_schedule(config), RandomK):
        raise ValueError(
            f"algorithm/schedule=random_k decides by its draws how long orders take, so that "
            f"devices/{parts[0]} has no effect: leave it out with '~devices/{parts[0]}'"
        )
    if config.runtime.name != "deployment":  # how many nodes there will be, nobody knows
        build_schedule(config).check(config.num_clients)


def _check_runtime(runtime: DictConfig) -> None:
    if runtime.name == "inprocess":
        workers = runtime.workers
        require(
            workers == "auto" or (isinstance(workers, int) and workers >= 0),
            "runtime.workers",
            workers,
            "auto or an integer >= 0",
            "0 trains in the main process",
        )
        require_positive("runtime.patience", runtime.patience, "every worker would be replaced")
    if runtime.device not in ("auto", "cpu"):
        _check_device(runtime.device)


def _check_device(device: Any) -> None:
    import torch  # takes seconds, and only other devices need it

    try:
        torch.empty(0, device=torch.device(device))
    except (RuntimeError, AssertionError, TypeError) as error:  # torch asserts that it knows CUDA
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise ValueError(
            f"runtime.device={device} must be cpu, a device that torch can use here, or auto, "
            f"which takes a GPU if there is one: {reason}"
        ) from None


def build_strategy(config: DictConfig) -> AsyncStrategy:
    """The server half of the configured algorithm."""
    strategy: AsyncStrategy = instantiate(config.algorithm.strategy)
    return strategy


def build_schedule(config: DictConfig) -> Schedule:
    """When clients start and updates are aggregated."""
    schedule: Schedule = instantiate(config.algorithm.schedule)
    return schedule


def build_guard(config: DictConfig) -> Guard:
    """What keeps bad uploads out."""
    return Guard(**cast(dict[str, Any], OmegaConf.to_container(config.guard)))


def _has_target(value: object) -> bool:
    return isinstance(value, dict) and "_target_" in value
