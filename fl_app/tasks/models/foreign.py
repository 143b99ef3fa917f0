"""A user's own models, and whether a model fits a task."""

import copy
import inspect
import pkgutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl_app.core.errors import explaining
from fl_app.tasks.models import Shape, if_last
from fl_app.tasks.objective import Objective


def imported(key: str, path: str) -> Callable[..., Any]:
    """The callable of ``package.module:callable``.

    Args:
        key: of the configuration.
        path: its value.

    Raises:
        ValueError: it cannot be imported, or cannot be called.
    """
    remedy = (
        f"; a module must lie in the folder where the command is started ({Path.cwd()}), or be "
        "installed; real nodes get it with the app if it lies where `python -m fl_app.field run` "
        "is started, or in the server's folder"
    )
    with explaining(f"{key}={path} must be package.module:callable", remedy):
        value = pkgutil.resolve_name(path)
    if not callable(value):
        raise ValueError(f"{key}={path} is a {type(value).__name__}, which cannot be called")
    return value


def maker_of(model: Any, shape: Shape, num_outputs: int) -> Callable[[], nn.Module]:
    """A callable that makes new models without arguments.

    Args:
        model: a callable that takes the shape of one input and the number of outputs, or nothing;
            or a module, of which each new model is a copy.
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
    parameters = inspect.signature(model).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if not needed:
        return partial(model)
    if len(needed) == 2:
        return partial(model, shape, num_outputs)
    raise ValueError(
        f"model needs the arguments {', '.join(needed)}: it can have two, the shape of one input "
        "and the number of outputs, or none"
    )


def require_fit(
    make: Callable[[], nn.Module], inputs: Tensor, target: Tensor, objective: Objective
) -> None:
    """Refuse a model or a loss that does not fit a task's examples.

    torch's random state is the same after the call.

    Args:
        make: makes the model.
        inputs: of at least two examples, as the model receives them.
        target: the targets of these examples.
        objective: of the task.

    Raises:
        ValueError: naming what is needed and what was found.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the model, on two examples
        model = make()
        if not isinstance(model, nn.Module):
            raise ValueError(f"model gives a {type(model).__name__} and no torch.nn.Module")
        if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
            raise ValueError(
                "the model has layers whose size a first batch decides: give the size, "
                "since server and clients exchange parameters before they train"
            )
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("the model has no parameter that can be trained")
        what = f"inputs of shape {tuple(inputs.shape)} and type {inputs.dtype}"
        what += ": give a model for such inputs"
        what += "" if inputs.is_floating_point() else "; integers are taken for tokens"
        with explaining(f"the model cannot process {what}", if_last(tuple(inputs.shape[1:]))):
            output = model.train()(inputs)
        actual, expected = tuple(getattr(output, "shape", ())), objective.output_shape(target)
        # One number for each example may come without a dimension of its own.
        if actual != expected and not (expected == (len(target), 1) and actual == (len(target),)):
            raise ValueError(
                f"the model gives outputs of shape {actual} for {len(inputs)} examples and must "
                f"give {expected}: {objective.kind} needs {objective.num_outputs} outputs for each"
            )
        shapes = f"outputs of shape {actual} and targets of shape {tuple(target.shape)}"
        with explaining(f"loss cannot process {shapes} and type {target.dtype}"):
            loss = objective.loss(output, target)
        if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
            raise ValueError("loss must give one number that depends on the output: the mean loss")
        twice = objective.loss(torch.cat([output, output]), torch.cat([target, target]))
        if abs(float(twice)) > 1.5 * abs(float(loss)):
            raise ValueError("loss must give the mean over a batch, and gives a sum")
