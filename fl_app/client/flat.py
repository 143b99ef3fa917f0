"""A PyTorch model as one flat vector."""

import numpy as np
import torch
from torch import Tensor, nn

from fl_app.core.layout import Entry, Layout
from fl_app.core.types import Vector


class FlatModel:
    """A module whose parameters and buffers are views into one float32 vector.

    Loading a model is one copy, an SGD step a few calls on lists of views. Integer buffers (such as
    BatchNorm's counter) cannot be views; they are written through on `load` and read on `read`.

    Args:
        module: taken over; its tensors move into the vector.

    Attributes:
        layout: names and places; trainable parameters first.
        flat: shape ``(d,)``, the storage of all float tensors.
        params: the trainable parameters, views into `flat`, in the layout's order.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        trainable = {name for name, p in module.named_parameters() if p.requires_grad}
        tensors = self.module.state_dict(keep_vars=True)
        if len({id(tensor) for tensor in tensors.values()}) < len(tensors):
            raise ValueError(
                "the model has one tensor under two names (tied weights): in a vector it would lie "
                "twice, and the second would never be trained"
            )
        self.layout = Layout(
            tuple(
                Entry(name, tuple(t.shape), str(t.dtype).removeprefix("torch."), name in trainable)
                for name, t in tensors.items()
            )
        )
        self.flat = torch.zeros(self.layout.size, device=device)
        self._host = self.flat.numpy() if self.flat.device.type == "cpu" else None
        self._integers: list[tuple[Tensor, slice]] = []
        named_params = dict(self.module.named_parameters())
        with torch.no_grad():
            for entry in self.layout.entries:
                place = self.layout.slices[entry.name]
                tensor = tensors[entry.name]
                view = self.flat[place].view(entry.shape)
                view.copy_(tensor)
                if not tensor.is_floating_point():
                    self._integers.append((tensor, place))
                elif entry.name in named_params:
                    named_params[entry.name].data = view
                else:
                    owner, _, name = entry.name.rpartition(".")
                    self.module.get_submodule(owner)._buffers[name] = view
        order = sorted(
            (e for e in self.layout.entries if e.trainable),
            key=lambda e: self.layout.slices[e.name].start,
        )
        self.params = [named_params[entry.name] for entry in order]

    def load(self, vector: Vector) -> None:
        """Set parameters and buffers from a vector of shape ``(d,)``."""
        if self._host is not None:
            np.copyto(self._host, vector)
        else:
            self.flat.copy_(torch.tensor(vector))
        for tensor, place in self._integers:
            tensor.copy_(self.flat[place].round().view(tensor.shape))

    def read(self, out: Vector | None = None, start: int = 0) -> Vector:
        """The current parameters and buffers, from entry `start` on.

        Args:
            out: to copy them into, shape ``(d - start,)``; default a new vector.
            start: such as the number of trainable entries, where buffers alone are wanted.
        """
        for tensor, place in self._integers:
            self.flat[place] = tensor.reshape(-1).float()
        vector = np.empty(self.layout.size - start, np.float32) if out is None else out
        here = self._host[start:] if self._host is not None else self.flat[start:].cpu().numpy()
        np.copyto(vector, here)
        return vector
