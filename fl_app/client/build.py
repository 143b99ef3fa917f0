"""What a node needs, built from the configuration: a task and a trainer.

A node loads this module for its first order. It must not load the server's half
(`fl_app.runner.factory`): memory is scarce on a small device.
"""

import ctypes
import inspect
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from numbers import Integral, Real
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf

from fl_app.client.gpus import prepare
from fl_app.client.node_data import AnyId, own_config
from fl_app.client.transform import Narrow, Private, Transformation, Transformed
from fl_app.core.errors import require
from fl_app.core.extras import missing
from fl_app.core.types import Trainer

if TYPE_CHECKING:
    from fl_app.client.trainer import LocalTrainer
    from fl_app.tasks.task import Task

log = logging.getLogger(__name__)

# From malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


# Keys below `task` that every task has: `complete_task` and `build_model` do what they say.
COMMON_KEYS = ("holdout", "loss", "weights", "trainable")


def build_task(config: DictConfig, data: str | None = None) -> "Task":
    """The task with the data of all `num_clients` clients, or of a node with data of its own.

    Args:
        config: of the run.
        data: path of the node's own data; the task then has one client with all of them, under
            any client id. None = the data that `config` names.

    Raises:
        ValueError: a value or the data are refused.
    """
    if data is not None:
        config = own_config(config, data)
    task = instantiate(config.task, leave_out=COMMON_KEYS)(seed=config.seed)
    try:
        task.check_model()
    except ValueError as error:
        key, problem = f"task.model={config.task.get('model')}", str(error)
        raise ValueError(problem if problem.startswith(key) else f"{key}: {problem}") from error
    task = complete_task(config, task)
    if data is None:
        return task
    return replace(task, partition=AnyId(task.partition), validation=AnyId(task.validation))


def owners_decide(config: DictConfig) -> bool:
    """Whether the data decide how many clients there are, by owners or by their partitioner."""
    if config.num_clients is not None or config.runtime.get("name") == "deployment":
        return False
    if config.task.get("client"):
        return True
    return "_target_" in config.partition and getattr(
        instantiate(config.partition), "decides", False
    )


def complete_task(config: DictConfig, task: "Task") -> "Task":
    """A task with what the configuration asks for: clients, validation examples, frozen parameters.

    Args:
        config: of the run.
        task: of the configuration, or made in Python. One with examples and without clients gets
            those of ``partition`` and ``num_clients``.

    Raises:
        ValueError: a value is refused.
    """
    if not task.num_clients and len(task.targets):  # a server whose nodes own the data has none
        # Without owners, null says that the nodes are the clients.
        num_clients = None if owners_decide(config) else config.num_clients or 1
        task = task.with_clients(instantiate(config.partition), num_clients, config.seed)
    holdout, loss, weights, trainable = map(config.task.get, COMMON_KEYS)
    if holdout and task.num_clients:
        task = task.with_holdout(holdout, config.seed)
    if loss is not None:
        task = task.with_loss(loss)
    if weights is not None:
        from fl_app.client.initial import weighted

        task = replace(task, architecture=weighted(task.architecture, weights))
    if trainable is not None:
        # Imported here: checks of a configuration import this module, and not torch.
        from fl_app.client.flat import trainable_only

        task = replace(task, architecture=partial(trainable_only, task.architecture, [*trainable]))
    return task


def build_trainer(
    config: DictConfig,
    task: "Task",
    make: "Callable[..., LocalTrainer] | None" = None,
    device: str | None = None,
) -> "LocalTrainer":
    """The client half of the configured algorithm.

    Args:
        config: of the run.
        task: as `build_task` gives it.
        make: called in place of the configured class.
        device: in place of ``runtime.device``.

    Raises:
        ValueError: a value is refused, or the class leaves out its base.
    """
    trainer: LocalTrainer = instantiate(
        config.algorithm.client,
        make=make,
        task=task,
        seed=config.seed,
        device=config.runtime.device if device is None else device,
    )
    if not hasattr(trainer, "model"):
        problem = f"{type(trainer).__name__}.__init__ must call super().__init__(task, **settings)"
        raise ValueError(f"{problem}: there is no model to train")
    return trainer


def transformed(config: DictConfig, trainer: "LocalTrainer") -> Trainer:
    """A trainer within the transformations of the run."""
    if not asks_for_masks(config):
        return chain(trainer)
    masked = locate(config.secure_aggregation._target_)
    return chain(trainer, masked(config, trainer.model.layout.size))


def asks_for_masks(config: DictConfig) -> bool:
    """Whether uploads are masked (``secure_aggregation=helper``)."""
    secure = config.get("secure_aggregation")
    return secure is not None and secure.name == "helper"


def chain(trainer: "LocalTrainer", *further: Transformation) -> Trainer:
    """A trainer within the transformations of its settings, and within further ones.

    Args:
        trainer: does the training.
        further: the innermost first.
    """
    transformations: list[Transformation] = [Private(trainer.model)] if trainer.private else []
    transformations += [trainer.compressed] if trainer.compressed.changes else []
    transformations += [Narrow(trainer)] if trainer.widths else []
    result: Trainer = trainer
    for transformation in (*transformations, *further):
        result = Transformed(result, transformation)
    return result


@dataclass(frozen=True)
class Recipe:
    """Makes a trainer in a process that inherits nothing; it can be pickled.

    Attributes:
        config: of the run.
        task: complete, with its data.
        make: in place of the configured trainer; None = the configured one.
    """

    config: DictConfig
    task: "Task"
    make: "Callable[..., LocalTrainer] | None"

    def __call__(self, device: str) -> Trainer:
        """The trainer on a device, in a process that is prepared for it."""
        prepare_process()
        prepare(device)
        trainer = build_trainer(self.config, self.task, self.make, device)
        return transformed(self.config, trainer)


def together(config: DictConfig, trainer: "LocalTrainer", batch: int) -> Trainer:
    """A trainer of up to `batch` orders in one operation, if that is possible."""
    result = transformed(config, trainer)
    if batch == 1:
        return result
    from fl_app.client.batch import BatchTrainer, obstacle  # which need torch

    if reason := obstacle(result):
        log.warning("runtime.batch=%s: clients are trained one at a time: %s", batch, reason)
        return result
    return BatchTrainer(trainer, batch)


def prepare_process() -> None:
    """Set the threads and the memory allocator of this process and its children for training.

    torch and BLAS get one thread. Results then do not depend on the number of cores. One thread is
    also the fastest: small models gain nothing from a second one, and there are as many training
    processes as cores.

    The C library keeps up to 1 GB of freed memory. By default it returns the tensors of every
    mini-batch to the system and pages them in again for the next one, which takes a tenth of a
    LeNet step's time. The same holds for every vector of a large model: ten uploads of ResNet-18
    have 450 MB. A higher M_MMAP_THRESHOLD does not help there, because it cannot exceed 32 MB.
    """
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)
    library = ctypes.CDLL(None)
    library.mallopt(M_TRIM_THRESHOLD, 1 << 30)
    library.mallopt(M_MMAP_MAX, 0)


def instantiate(
    node: DictConfig,
    facts: Mapping[str, Any] | None = None,
    leave_out: Collection[str] = (),
    make: Callable[..., Any] | None = None,
    **more: Any,
) -> Any:
    """Call what ``node._target_`` names with the node's other keys and `more`.

    A key whose value is a node with a target of its own gets the object that this target makes.

    NOTE: `hydra.utils.instantiate` neither checks the types of values nor leaves out facts that a
    target does not take, wraps every refusal in an error of its own, and would have nodes load
    Hydra.

    Args:
        node: of the configuration.
        facts: about the run; the target gets those that it has a parameter for.
        leave_out: keys of the node that the target does not get.
        make: called in place of the target.
        more: further arguments.

    Raises:
        ValueError: the target is missing, does not exist or know a key, or refuses a value.
    """
    settings = OmegaConf.to_container(node, resolve=True)
    assert isinstance(settings, dict)
    if "_target_" not in settings:
        key = node._get_full_key("_target_")
        raise ValueError(f"{key} is missing: it names the class that the other keys are for")
    target = str(settings.pop("_target_"))
    if make is None:
        make = locate(target)
    keywords = {
        str(key): instantiate(node[key]) if _has_target(value) else value
        for key, value in settings.items()
        if key not in leave_out
    }
    signature = signature_of(make)
    declared = getattr(make, "__dataclass_fields__", {})
    for key, value in keywords.items():
        if key in signature.parameters:
            full_key = str(node._get_full_key(key))
            effect = declared[key].metadata.get("consequence", ONLY) if key in declared else ONLY
            check_type(full_key, value, signature.parameters[key].annotation, effect)
    more |= {key: fact for key, fact in (facts or {}).items() if key in signature.parameters}
    try:
        signature.bind(**keywords, **more)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise ValueError(f"{target}: {error}; its arguments are {takes}") from error
    return make(**keywords, **more)


def locate(target: str) -> Any:
    """The class or function with this dotted path.

    Raises:
        ValueError: there is none.
    """
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        cause = missing(error) or error
        raise ValueError(f"_target_={target} cannot be imported: {cause}") from error


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Parameters with their annotations, evaluated where that is possible."""
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, AttributeError):  # of other packages, annotated for type checkers alone
        return inspect.signature(function)


# Annotations whose values are checked -> their name in a message, and the test of a value.
ONLY = "nothing else can be worked with"
TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("an integer", lambda value: _is_a(value, Integral)),
    float: ("a number", lambda value: _is_a(value, Real) and not math.isnan(value)),
    str: ("a text", lambda value: isinstance(value, str)),
    type(None): ("null", lambda value: value is None),
}


def check_type(key: str, value: Any, annotation: Any, consequence: str) -> None:
    """Refuse a value that does not fit a parameter's annotation, if that consists of `TYPES`.

    Raises:
        ValueError: naming key, value, types and consequence.
    """
    union = get_origin(annotation) in (Union, UnionType)
    kinds = get_args(annotation) if union else (annotation,)
    if not all(isinstance(kind, type) and kind in TYPES for kind in kinds):
        return
    require(
        any(TYPES[kind][1](value) for kind in kinds),
        key,
        value,
        " or ".join(TYPES[kind][0] for kind in kinds),
        consequence,
    )


def _is_a(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _has_target(value: object) -> bool:
    return isinstance(value, dict) and "_target_" in value
