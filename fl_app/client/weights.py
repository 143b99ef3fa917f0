"""The first model's weights from a file. Nothing is ever unpickled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SHOWN = 5  # names in a message


def load_weights(module: nn.Module, file: str) -> None:
    """Set all parameters and buffers of a module from a file, by name.

    Args:
        module: the model; it is changed.
        file: ``.safetensors``; ``.npz`` with an array per name, such as a run's ``model.npz``; or
            else what ``torch.save(model.state_dict(), file)`` wrote, read with `weights_only`.

    Raises:
        ValueError: the file cannot be read, has names or shapes that are not the model's, or values
            that are not finite.
    """
    path = Path(file).expanduser()
    try:
        weights = _read(path)
    except Exception as error:  # libraries raise errors of any type
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"task.weights={file} must be a .safetensors file, a .npz file, or what "
            "torch.save(model.state_dict(), ...) wrote, with nothing but tensors by name: nothing "
            f"else is read, since pickled objects can run code ({type(error).__name__}: {reason})"
        ) from error
    _require_fit(weights, module.state_dict(keep_vars=True), file)
    module.load_state_dict(weights, strict=False)  # what is tied needs only one of its names


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    weights: Any
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            weights = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    else:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(weights, Mapping):
        raise TypeError(f"it holds a {type(weights).__name__}")
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name!r} is a {type(tensor).__name__}")
    return dict(weights)


def _require_fit(weights: Mapping[str, Tensor], model: Mapping[str, Tensor], file: str) -> None:
    given = {id(tensor) for name, tensor in model.items() if name in weights}
    problems = []
    for what, names in (
        ("it lacks", [name for name, tensor in model.items() if id(tensor) not in given]),
        ("the model lacks", [name for name in weights if name not in model]),
        (
            "shapes differ of",
            [
                f"{name} ({_shape(weights[name])}, the model's is {_shape(tensor)})"
                for name, tensor in model.items()
                if name in weights and weights[name].shape != tensor.shape
            ],
        ),
        (
            "not finite are",
            [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())],
        ),
    ):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            problems.append(f"{what} {', '.join(names[:SHOWN])}{more}")
    if problems:
        raise ValueError(
            f"task.weights={file} must hold the tensors of the model of task.model, all of them "
            f"and no others: {'; '.join(problems)}"
        )


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
