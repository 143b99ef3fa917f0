"""Models from elsewhere: torchvision's by name, and a user's own."""

import copy
import inspect
import pkgutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fl_app.tasks.models import Shape
from fl_app.tasks.vision import torchvision

# During training these give the outputs of further heads, too, unless they are told not to.
WITH_FURTHER_HEADS = ("googlenet", "inception_v3")


def torchvision_model(name: str, num_outputs: int) -> nn.Module:
    """A new classification model of torchvision with random weights."""
    settings = {"aux_logits": False, "init_weights": True} if name in WITH_FURTHER_HEADS else {}
    model: nn.Module = torchvision().models.get_model(
        name, weights=None, num_classes=num_outputs, **settings
    )
    return model


def imported(key: str, path: str) -> Callable[..., Any]:
    """The callable of ``package.module:callable``.

    Args:
        key: of the configuration.
        path: its value.

    Raises:
        ValueError: it cannot be imported, or is none.
    """
    try:
        found = pkgutil.resolve_name(path)
    except Exception as error:  # of any type, in the user's module
        remedy = ""
        name = path.partition(":")[0].partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            remedy = (
                f"; {name}.py or {name}/ must lie in the folder where the command is started "
                f"({Path.cwd()}), or be installed; real nodes get it with the app if it lies "
                "where `python -m fl_app.field run` is started, or in the server's folder"
            )
        raise ValueError(
            f"{key}={path} must be package.module:callable, found from where Python looks for "
            f"modules: {type(error).__name__}: {error}{remedy}"
        ) from error
    if not callable(found):
        raise ValueError(f"{key}={path} is a {type(found).__name__}, which cannot be called")
    called: Callable[..., Any] = found
    return called


def maker_of(model: Any, shape: Shape, num_outputs: int) -> Callable[[], nn.Module]:
    """A callable that makes new models without arguments.

    Args:
        model: a callable that takes the shape of one input and the number of outputs (by these
            places, or as ``input_shape`` and ``num_outputs``), or nothing; or a module, of which
            each new model is a copy.
        shape: of one input.
        num_outputs: of the model.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(model, nn.Module):
        return partial(copy.deepcopy, copy.deepcopy(model).cpu())  # as it is now
    if not callable(model):
        raise ValueError(
            f"model is a {type(model).__name__} and must be a callable that returns a "
            "torch.nn.Module, or the name of a model"
        )
    facts = {"input_shape": shape, "num_outputs": num_outputs}
    parameters = inspect.signature(model).parameters
    named = {key: fact for key, fact in facts.items() if key in parameters}
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if set(needed) <= named.keys():
        return partial(model, **named) if named else model
    if len(needed) == len(facts):
        return partial(model, shape, num_outputs)
    raise ValueError(
        f"model needs the arguments {', '.join(needed)}: it can have those two, input_shape and "
        "num_outputs, or none"
    )
