"""The first model's weights from a file. Nothing is ever unpickled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SHOWN = 500  # letters of what torch says


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
    model = module.state_dict(keep_vars=True)
    given = {id(tensor): weights[name] for name, tensor in model.items() if name in weights}
    tied = {name: given[id(tensor)] for name, tensor in model.items() if id(tensor) in given}
    wrong = [f"{name} is not finite" for name, tensor in weights.items() if not _is_finite(tensor)]
    try:
        module.load_state_dict({**weights, **tied})  # of what is tied one name will do
    except RuntimeError as error:
        wrong.append(" ".join(str(error).split())[:SHOWN])
    if wrong:
        raise ValueError(
            f"task.weights={file} must hold the tensors of the model of task.model, all of them "
            f"and no others: {'; '.join(wrong)}"
        )


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


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
