"""Lists of tensors as one vector of NumPy, in which they travel and are kept."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_app.core.types import Vector


def to_vector(tensors: Sequence[Tensor]) -> Vector:
    """All entries one after the other, shape ``(d,)``."""
    vector: Vector = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).cpu().numpy()
    return vector


def to_tensors(vector: NDArray[Any], like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `to_vector`: copies with the shapes and on the device of `like`."""
    sizes = [tensor.numel() for tensor in like]
    parts = torch.split(torch.tensor(vector, device=like[0].device), sizes)
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
