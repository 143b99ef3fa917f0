"""The model that a run begins with, and its weights from a file. Nothing is ever unpickled."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fl_app.client.flat import FlatModel
from fl_app.core.errors import error_text

if TYPE_CHECKING:
    from fl_app.tasks.task import Task

SHOWN = 500  # characters of torch's message that are shown


def build_model(
    task: "Task",
    seed: int,
    device: torch.device | str = "cpu",
    private: Sequence[str] | None = None,
) -> FlatModel:
    """A task's model as it is before training; it depends on the arguments alone.

    Args:
        task: makes the model.
        seed: of the random weights.
        device: torch device.
        private: see `FlatModel`.

    Raises:
        ValueError: the model has no part that is trained and shared.
    """
    with torch.random.fork_rng(devices=[]):  # the caller's own draws stay as they were
        torch.manual_seed(seed)
        module = task.model()
    return FlatModel(module, device, private or ())


def weighted(make_model: Callable[[], nn.Module], file: str) -> Callable[[], nn.Module]:
    """A callable that makes the same models with the weights of a file (`read_weights`)."""
    return partial(_with_weights, make_model, file, read_weights(file))


def read_weights(file: str) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Args:
        file: ``.safetensors``; ``.npz`` with an array per name, such as a run's ``model.npz``; or
            else what ``torch.save(model.state_dict(), file)`` wrote, read with `weights_only`.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        path = Path(file).expanduser()
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        weights: Any = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(weights, Mapping):
            raise TypeError(f"it holds a {type(weights).__name__}")
        for name, tensor in weights.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name!r} is a {type(tensor).__name__}")
        return dict(weights)
    except Exception as error:  # libraries raise errors of any type
        raise ValueError(
            f"task.weights={file} must be a .safetensors file, a .npz file, or what "
            "torch.save(model.state_dict(), ...) wrote, with nothing but tensors by name: nothing "
            f"else is read, since pickled objects can run code ({error_text(error)[:200]})"
        ) from error


def _with_weights(
    make_model: Callable[[], nn.Module], file: str, weights: Mapping[str, Tensor]
) -> nn.Module:
    """A model with these weights; ValueError if they do not fit it, or one is not finite."""
    module = make_model()
    model = module.state_dict(keep_vars=True)
    values = {id(tensor): weights[name] for name, tensor in model.items() if name in weights}
    tied = {name: values[id(tensor)] for name, tensor in model.items() if id(tensor) in values}
    problems = [f"{name} is not finite" for name, t in weights.items() if not t.isfinite().all()]
    try:
        module.load_state_dict({**weights, **tied})  # of tied tensors one name is enough
    except RuntimeError as error:
        problems.append(error_text(error)[:SHOWN])
    if problems:
        raise ValueError(
            f"task.weights={file} must hold the tensors of the model of task.model, all of them "
            f"and no others: {'; '.join(problems)}"
        )
    return module
