"""A PyTorch model as one flat vector, without what is frozen or private."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fl_app.core.layout import Entry, Layout, names_of
from fl_app.core.types import Array, State, Vector
from fl_app.core.width import cut, units

# Kinds of devices on which all tensors lie in one vector. On others each tensor has its own memory,
# since cuDNN needs aligned tensors.
ONE_VECTOR = ("cpu",)
TOLERANCE = 1e-5  # greatest difference of two traces over the parameter's length


class FlatModel:
    """A module whose trained parameters and buffers are read and set as one float32 vector.

    On the processor they are views into it, so that loading a model is one copy. Integer buffers
    (such as BatchNorm's counter) cannot be; they are written through on `load` and read on `read`.

    Two kinds of tensors are not in the vector and stay in the module: frozen parameters, those with
    ``requires_grad=False``, on which server and clients must agree, and private ones. A tensor with
    several names (tied weights) is in the vector once, under its first name.

    Args:
        module: taken over; its tensors move into the vector.
        device: torch device.
        private: patterns (`fnmatch`) of the names of private parameters and buffers.

    Attributes:
        layout: names and places in the vector; trainable parameters first.
        device: torch device.
        params: the trainable parameters in the vector, in the layout's order.
        trained: `params`, followed by the private parameters.
        frozen: the frozen parameters by name, each once.
        private: the private parameters and buffers by name, each once.
        initial: their values before training.

    Raises:
        ValueError: no parameter would be trained and shared, or a private pattern matches nothing
            or a frozen parameter.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        private: Sequence[str] = (),
    ) -> None:
        self.module = module.to(device)
        self._patterns = tuple(private)
        tensors: dict[str, Tensor] = self.module.state_dict(keep_vars=True)
        first: dict[int, str] = {}
        self._first_names = {n: first.setdefault(id(t), n) for n, t in tensors.items()}
        own = {self._first_names[n] for n in matching("algorithm.client.private", private, tensors)}
        unique = {name: tensors[name] for name in first.values()}
        params = {name: t for name, t in unique.items() if isinstance(t, nn.Parameter)}
        self.frozen = {name: p for name, p in params.items() if not p.requires_grad}
        if conflicts := own & self.frozen.keys():
            raise ValueError(
                f"algorithm.client.private={list(private)} matches frozen parameters "
                f"({names_of(sorted(conflicts))}): what is not trained is equal on all clients"
            )
        self.private = {name: tensor for name, tensor in unique.items() if name in own}
        if not params.keys() - own - self.frozen.keys():
            raise ValueError(
                f"of the model's {len(params)} parameters {len(self.frozen)} are frozen "
                f"(requires_grad=False) and algorithm.client.private={list(private)} matches the "
                "others: one must be left that is trained and shared (task.trainable=[NAME])"
            )
        self.layout = Layout(
            tuple(
                Entry(name, tuple(t.shape), str(t.dtype).removeprefix("torch."), name in params)
                for name, t in unique.items()
                if name not in self.frozen and name not in own
            )
        )
        self.device = torch.device(device)
        flat = torch.zeros(self.layout.size)
        self._host = flat.numpy() if self.device.type in ONE_VECTOR else None
        self._places: list[tuple[Tensor, slice]] = []
        self._integers: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            for entry in self.layout.entries:
                place = self.layout.slices[entry.name]
                tensor = unique[entry.name]
                view = flat[place].view(entry.shape)
                view = view if self._host is not None else view.to(self.device, copy=True)
                view.copy_(tensor)
                self._places.append((view, place))
                if not tensor.is_floating_point():
                    self._integers.append((tensor, view))
                else:
                    tensor.data = view
        self.params: list[Tensor] = [params[entry.name] for entry in trainable_entries(self.layout)]
        private_params = [p for name, p in params.items() if name in own]
        self.trained = [*self.params, *private_params]
        self.initial = {name: t.detach().cpu().clone() for name, t in self.private.items()}
        self._fixed = {**self.frozen, **self.initial}

    def load(self, vector: Vector) -> None:
        """Set parameters and buffers from a vector of shape ``(d,)``."""
        if self._host is not None:
            np.copyto(self._host, vector)
        else:
            flat = torch.tensor(vector, device=self.device)
            for view, place in self._places:
                view.copy_(flat[place].view(view.shape))
        for tensor, view in self._integers:
            tensor.copy_(view.round())

    def read(self, start: int = 0) -> Vector:
        """The current parameters and buffers, from entry `start` on.

        Args:
            start: such as the number of trainable entries, where buffers alone are wanted.
        """
        for tensor, view in self._integers:
            view.copy_(tensor)
        if self._host is not None:
            return self._host[start:].copy()
        flat = torch.empty(self.layout.size, device=self.device)
        for view, place in self._places:
            flat[place] = view.reshape(-1)
        return flat[start:].cpu().numpy()

    def named(self, vector: Vector) -> dict[str, Array]:
        """All arrays of the module by name, in its own order.

        Args:
            vector: values of the arrays in the vector, shape ``(d,)``. Frozen parameters have their
                values, private ones their initial values.
        """
        arrays = self.layout.named(vector)
        arrays |= {name: _readable(tensor).numpy() for name, tensor in self._fixed.items()}
        return {name: arrays[first] for name, first in self._first_names.items()}

    def twin(self) -> "FlatModel":
        """A second model of the same layout; it shares the frozen and private tensors."""
        memo = {id(tensor): tensor for tensor in (*self.frozen.values(), *self.private.values())}
        return FlatModel(deepcopy(self.module, memo), self.device, self._patterns)

    def narrowed(self, share: float) -> "FlatModel":
        """A sub-model with a share of the units of every hidden layer (`fl_app.core.width`).

        Args:
            share: s in (0, 1), by which the outputs of hidden layers are divided in training.

        Raises:
            ValueError: the model has other layers than these, or buffers, or frozen parameters.
        """
        module = deepcopy(self.module)
        parts = {name: p for name, p in module.named_modules() if [*p.parameters(recurse=False)]}
        layers = (nn.Linear, nn.Conv2d, nn.GroupNorm)
        others = [name for name, part in parts.items() if not isinstance(part, layers)]
        others += [name for name, part in parts.items() if getattr(part, "groups", 1) > 1]
        others += [name for name, first in self._first_names.items() if name != first]  # tied
        if others := [*others, *dict(module.named_buffers()), *self.frozen, *self.private]:
            raise ValueError(
                "algorithm.client.widths needs a model of Linear, Conv2d without groups and "
                f"GroupNorm, all trained and shared: {names_of(others)} has no sub-model"
            )
        for part in parts.values():
            if isinstance(part, nn.GroupNorm):
                part.num_groups = math.gcd(part.num_groups, len(units(part.num_channels, share)))
        for part in [each for each in parts.values() if not isinstance(each, nn.GroupNorm)][:-1]:
            part.register_forward_hook(lambda p, _, out: out / share if p.training else out)
        places = cut(self.layout, share)
        for name, parameter in module.named_parameters():
            parameter.data = parameter.data.new_zeros(places[name].shape)
        return FlatModel(module, self.device)

    # -- private ----------------------------------------------------------------------------------

    def read_private(self) -> dict[str, Array]:
        """Copies of the private tensors by name."""
        return {name: _readable(tensor).numpy().copy() for name, tensor in self.private.items()}

    @torch.no_grad()
    def load_private(self, arrays: State) -> None:
        """Set the private tensors; those that `arrays` lacks get their initial values."""
        for name, tensor in self.private.items():
            tensor.copy_(torch.tensor(arrays[name]) if name in arrays else self.initial[name])

    # -- frozen -----------------------------------------------------------------------------------

    @cached_property
    def traces(self) -> list[float]:
        """A number for each frozen parameter p and each initial private one, to compare models.

        It is <p, (cos 0, cos 1, ...)>. Other rounding on another machine changes it by far less
        than 1e-5 of the length of p, and other values change it by about that length.
        """
        return [_projected(tensor) for tensor in self._fixed.values()]

    def differing(self, traces: Sequence[float]) -> list[str]:
        """Names of the frozen or initial private parameters that do not fit these `traces`."""
        if len(traces) != len(self._fixed):
            return sorted(self._fixed) or ["none"]
        pairs = zip(self._fixed.items(), self.traces, traces, strict=True)
        return [
            name
            for (name, tensor), own, other in pairs
            if own != other
            and abs(own - other) > TOLERANCE * float(_readable(tensor).double().norm())
        ]


def _projected(tensor: Tensor) -> float:
    values = _readable(tensor).reshape(-1).double().numpy()
    return float(values @ np.cos(np.arange(values.size)))


def trainable_entries(layout: Layout) -> list[Entry]:
    """The trained parameters of a layout, in the order of the vector."""
    return [entry for entry in layout.entries if entry.trainable]


def matching(key: str, patterns: Sequence[str], names: Mapping[str, object]) -> set[str]:
    """The names that a pattern matches.

    Raises:
        ValueError: a pattern matches none; it names `key`.
    """
    matches: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise ValueError(
                f"{key}={pattern!r} matches no name in the model, whose names are "
                f"{names_of(names)}: the pattern would have no effect"
            )
        matches |= matched
    return matches


def trainable_only(make_model: Callable[[], nn.Module], patterns: Sequence[str]) -> nn.Module:
    """A model in which all other parameters are frozen.

    Args:
        make_model: makes a model.
        patterns: (`fnmatch`) of the names of the parameters to train.

    Raises:
        ValueError: a pattern matches no parameter of the model.
    """
    module = make_model()
    params = dict(module.named_parameters(remove_duplicate=False))
    trained_names = matching("task.trainable", patterns, params)
    ids = {id(params[name]) for name in trained_names}
    for name, parameter in params.items():
        trains = id(parameter) in ids
        if trains and not parameter.is_floating_point():
            raise ValueError(
                f"task.trainable matches {name}, which is {parameter.dtype}: only floating-point "
                "parameters can be trained"
            )
        parameter.requires_grad_(trains)
    return module


def _readable(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, as float32 if NumPy does not know its type."""
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def to_vector(tensors: Sequence[Tensor]) -> Vector:
    """All entries one after the other, shape ``(d,)``."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).cpu().numpy()


def to_tensors(vector: Array, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `to_vector`: copies with the shapes and on the device of `like`."""
    sizes = [tensor.numel() for tensor in like]
    parts = torch.split(torch.tensor(vector, device=like[0].device), sizes)
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
