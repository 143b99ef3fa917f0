"""One forward pass through several models of the same architecture, each with weights of its own.

Parameters are stacked: the first dimension counts clients. A chain of linear layers and functions
of single entries becomes one matrix product per layer for all clients (`torch.bmm`), which is the
fastest form for small models. For other models `torch.vmap` makes such a pass of the module's own.
It turns the convolutions of B clients into one with B groups. The other form of a convolution is a
product of a matrix of windows, which `vmap` turns into `torch.bmm`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fl_app.client.settings import GROUPED, UNFOLD

# Maps the stacked parameters, each of shape ``(B, ...)``, and inputs ``(B, n, ...)`` to outputs
# ``(B, n, ...)``.
Forward: TypeAlias = Callable[[Sequence[Tensor], Tensor], Tensor]
Layer: TypeAlias = Callable[[Sequence[Tensor], Tensor], Tensor]

# Layers whose output at a place depends on the input at this place alone.
OF_SINGLE_ENTRIES = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
)


def stacked_forward(
    module: nn.Module, params: Sequence[nn.Parameter], convolution: str = GROUPED
) -> Forward:
    """The forward pass of stacked models.

    Args:
        module: a model of this architecture. Its frozen parameters are those of all models.
        params: its trained parameters, in the sequence in which the pass takes them stacked.
        convolution: ``"grouped"``, or ``"unfold"``, a matrix product.
    """
    places = {id(parameter): place for place, parameter in enumerate(params)}
    layers = [_layer(part, places) for part in _chain(module)]
    known = [layer for layer in layers if layer is not None]
    if len(known) < len(layers):
        return _vectorised(module, params, convolution)

    def forward(stacked: Sequence[Tensor], inputs: Tensor) -> Tensor:
        for layer in known:
            inputs = layer(stacked, inputs)
        return inputs

    return forward


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that are called one after the other."""
    if type(module) is nn.Sequential and not _hooked(module):
        for part in module:
            yield from _chain(part)
    else:
        yield module


def _layer(module: nn.Module, places: Mapping[int, int]) -> Layer | None:
    """The layer for stacked models; None = it is not known."""
    if _hooked(module):
        return None
    if type(module) is nn.Linear:
        return _linear(module, places)
    if type(module) is nn.Flatten and module.start_dim >= 1:
        start = module.start_dim + 1
        end = module.end_dim + 1 if module.end_dim >= 0 else module.end_dim
        return lambda _, inputs: inputs.flatten(start, end)
    if type(module) in OF_SINGLE_ENTRIES:
        return lambda _, inputs: module(inputs)
    return None


def _linear(module: nn.Linear, places: Mapping[int, int]) -> Layer | None:
    weight, bias = (
        None if own is None else places.get(id(own), -1) for own in (module.weight, module.bias)
    )
    if weight is None or weight < 0 or bias == -1:  # frozen
        return None

    def layer(params: Sequence[Tensor], inputs: Tensor) -> Tensor:
        rows = inputs.flatten(1, -2)  # a matrix for each client
        turned = params[weight].mT
        if bias is None:
            outputs = torch.bmm(rows, turned)
        else:
            outputs = torch.baddbmm(params[bias].unsqueeze(1), rows, turned)
        return outputs.view(*inputs.shape[:-1], -1)

    return layer


def _vectorised(module: nn.Module, params: Sequence[nn.Parameter], convolution: str) -> Forward:
    chosen = {id(parameter) for parameter in params}
    named = {id(p): name for name, p in module.named_parameters() if id(p) in chosen}
    names = [named[id(parameter)] for parameter in params]
    module = _for_vmap(module, convolution)

    def one(own: Sequence[Tensor], inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(module, dict(zip(names, own, strict=True)), (inputs,))
        return output

    forward: Forward = torch.vmap(one)
    return forward


class _Unfolded(nn.Module):
    """A convolution as one matrix product.

    Args:
        convolution: its parameters are shared; `_can_unfold` says which it may be.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self._padding, self._stride = convolution.padding, convolution.stride

    def forward(self, images: Tensor) -> Tensor:
        """Images of shape ``(n, channels, height, width)``."""
        rows, columns = (int(entry) for entry in self._padding)
        if rows or columns:
            images = F.pad(images, (columns, columns, rows, rows))
        outputs, _, *size = self.weight.shape
        for dimension, (length, stride) in enumerate(zip(size, self._stride, strict=True), 2):
            images = images.unfold(dimension, length, stride)
        num, _, height, width = images.shape[:4]
        windows = images.permute(0, 2, 3, 1, 4, 5).reshape(num * height * width, -1)
        product = F.linear(windows, self.weight.reshape(outputs, -1), self.bias)
        return product.view(num, height, width, outputs).permute(0, 3, 1, 2)


class _Normalised(nn.Module):
    """A group normalisation in operations that `vmap` knows for every layout of the memory.

    Args:
        norm: its parameters are shared.
    """

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self._groups, self._eps = norm.num_groups, norm.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs of shape ``(n, channels, ...)``."""
        groups = inputs.reshape(len(inputs), self._groups, -1)
        outputs = F.layer_norm(groups, groups.shape[2:], eps=self._eps).reshape(inputs.shape)
        if self.weight is None:
            return outputs
        shape = (-1, *([1] * (inputs.ndim - 2)))
        return outputs * self.weight.view(shape) + self.bias.view(shape)


def _for_vmap(module: nn.Module, convolution: str) -> nn.Module:
    """The module with other forms of some layers; it shares all parameters."""
    alone = _other_form(module, convolution)
    if alone is not None:
        return alone
    parts = {name: _other_form(part, convolution) for name, part in module.named_modules()}
    others = {name: part for name, part in parts.items() if part is not None}
    if not others:
        return module
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    copied = deepcopy(module, shared)
    for name, part in others.items():
        copied.set_submodule(name, part)
    return copied


def _other_form(module: nn.Module, convolution: str) -> nn.Module | None:
    if _hooked(module):
        return None
    if type(module) is nn.GroupNorm:
        return _Normalised(module)
    if type(module) is nn.Conv2d and convolution == UNFOLD and _can_unfold(module):
        return _Unfolded(module)
    return None


def _can_unfold(module: nn.Conv2d) -> bool:
    return (
        module.groups == 1
        and tuple(module.dilation) == (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def _hooked(module: nn.Module) -> bool:
    """Whether somebody listens to the module's calls, which would not happen."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
