"""Which runs need torch, and which NumPy can compute as well."""

from typing import Any

from omegaconf import DictConfig

from fl_app.client.backend import NUMPY, TORCH
from fl_app.client.build import locate, signature_of
from fl_app.client.trainer import backend_of_task, computable
from fl_app.runner.given import NOTHING, Given
from fl_app.tasks.models.plain import PLANS


def needs_torch(config: DictConfig, given: Given = NOTHING) -> str:
    """Why a run needs torch, as the first half of a sentence; "" if NumPy can compute it.

    Args:
        config: of the run.
        given: objects in place of parts of it.
    """
    if config.runtime.get("backend") == TORCH:
        return "runtime.backend=torch asks for torch"
    return _of_trainer(config, given) or _of_task(config, given)


def _of_trainer(config: DictConfig, given: Given) -> str:
    target = str(config.algorithm.client.get("_target_"))
    trainer = given.trainer or _found(target)
    if isinstance(trainer, type) and NUMPY in computable(trainer):
        return ""
    return f"algorithm.client._target_={target} needs torch"


def _of_task(config: DictConfig, given: Given) -> str:
    task = config.task
    if given.task is not None:
        return "" if backend_of_task(given.task) == NUMPY else f"task={given.task.name} needs torch"
    target = str(task.get("_target_"))
    make = _found(target)
    if make is None or "backend" not in signature_of(make).parameters:
        return f"task._target_={target} needs torch"
    if task.get("model") is not None and task.model not in PLANS:
        return f"task.model={task.model} needs torch (NumPy has {', '.join(PLANS)})"
    for key in ("model_quirk", "augment", "loss"):
        if task.get(key):
            return f"task.{key}={task[key]} needs torch"
    return ""


def _found(target: str) -> Any:
    """What a target names; None if it cannot be imported without torch."""
    try:
        return locate(target)
    except ValueError as error:
        cause = error.__cause__
        if isinstance(cause, ImportError) and (cause.name or "").startswith("torch"):
            return None
        raise
