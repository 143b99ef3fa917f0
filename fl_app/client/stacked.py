"""One forward pass through several models of the same architecture, each with weights of its own.

Parameters are stacked: the first dimension counts clients. A chain of linear layers and functions
of single entries becomes one matrix product per layer for all clients (`torch.bmm`). Other models
gain nothing from it: their steps take longer than the calls of torch in them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

# Maps the stacked parameters, each of shape ``(B, ...)``, and inputs ``(B, n, ...)`` to outputs
# ``(B, n, ...)``.
Forward: TypeAlias = Callable[[Sequence[Tensor], Tensor], Tensor]

# Layers whose output at a place depends on the input at this place alone.
OF_SINGLE_ENTRIES = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
)


def stacked_forward(module: nn.Module, params: Sequence[Tensor]) -> Forward | None:
    """The forward pass of stacked models; None = the model is no such chain.

    Args:
        module: a model of this architecture.
        params: its trained parameters, in the sequence in which the pass takes them stacked.
    """
    places = {id(parameter): place for place, parameter in enumerate(params)}
    layers = [_layer(part, places) for part in _chain(module)]
    supported = [layer for layer in layers if layer is not None]
    if len(supported) < len(layers):
        return None

    def forward(stacked: Sequence[Tensor], inputs: Tensor) -> Tensor:
        for layer in supported:
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


def _layer(module: nn.Module, places: Mapping[int, int]) -> Forward | None:
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


def _linear(module: nn.Linear, places: Mapping[int, int]) -> Forward | None:
    weight, bias = places.get(id(module.weight)), places.get(id(module.bias))
    if weight is None or (bias is None) != (module.bias is None):  # frozen
        return None

    def layer(params: Sequence[Tensor], inputs: Tensor) -> Tensor:
        rows = inputs.flatten(1, -2)  # a matrix for each client
        transposed = params[weight].mT
        if bias is None:
            outputs = torch.bmm(rows, transposed)
        else:
            outputs = torch.baddbmm(params[bias].unsqueeze(1), rows, transposed)
        return outputs.view(*inputs.shape[:-1], -1)

    return layer


def _hooked(module: nn.Module) -> bool:
    """Whether the module has hooks, which would not be called."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
