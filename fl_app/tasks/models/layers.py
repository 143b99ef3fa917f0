"""Layers of NumPy arrays: what `fl_app.tasks.models.plain` needs of `torch.nn`, without torch.

They compute what torch's layers of the same names compute, and have the same initial weights for
the same seed. Images are float32, shape ``(n, channels, height, width)``.
"""

import math
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]


class Layer:
    """A layer without parameters.

    Attributes:
        parameters: by name, in torch's order; replaced, never changed in place, by `bind`.
    """

    def __init__(self) -> None:
        self.parameters: dict[str, Array] = {}

    def initialise(self, draws: "Draws") -> None:
        """Set the initial weights."""

    def forward(self, inputs: Array, keep: bool) -> Array:
        """The layer's outputs; with `keep` it can compute `backward` afterwards."""
        raise NotImplementedError

    def backward(self, slope: Array, wanted: bool) -> tuple[Array | None, dict[str, Array]]:
        """Gradients of the loss by the inputs and by every parameter.

        Args:
            slope: gradient by the outputs.
            wanted: whether that by the inputs is wanted; else it is None.
        """
        raise NotImplementedError


class Draws:
    """torch's generator of uniform numbers on the processor, bit by bit.

    Args:
        seed: as of `torch.manual_seed`.
    """

    def __init__(self, seed: int) -> None:
        # Both are the Mersenne Twister of 2002; torch takes the seed's lower 32 bits.
        self._random = np.random.RandomState(seed & 0xFFFFFFFF)

    def uniform(self, bound: float, shape: tuple[int, ...]) -> Array:
        """Numbers in [-bound, bound), as of `torch.Tensor.uniform_`."""
        bits = self._random.randint(0, 1 << 32, math.prod(shape), np.uint32) & ((1 << 24) - 1)
        # torch adds with a single rounding; in float64, products of these numbers are exact.
        low, width = np.float32(-bound), np.float32(bound) - np.float32(-bound)
        scaled = bits * 2.0**-24 * np.float64(width) + np.float64(low)
        return scaled.astype(np.float32).reshape(shape)


class Flatten(Layer):
    """All entries of an example in one row."""

    def forward(self, inputs: Array, keep: bool) -> Array:
        if keep:
            self._shape = inputs.shape
        return inputs.reshape(len(inputs), -1)

    def backward(self, slope: Array, wanted: bool) -> tuple[Array | None, dict[str, Array]]:
        return slope.reshape(self._shape), {}


class ReLU(Layer):
    """The larger of an entry and 0."""

    def forward(self, inputs: Array, keep: bool) -> Array:
        if keep:
            self._positive = inputs > 0
        return np.maximum(inputs, np.float32(0))

    def backward(self, slope: Array, wanted: bool) -> tuple[Array | None, dict[str, Array]]:
        return slope * self._positive, {}


class Weighted(Layer):
    """A layer with a weight and a bias.

    Args:
        shape: of the weight; its first entry is the number of outputs.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._inputs = math.prod(shape[1:])  # that one output depends on
        self.parameters = {
            "weight": np.zeros(shape, np.float32),
            "bias": np.zeros(shape[0], np.float32),
        }

    def initialise(self, draws: Draws) -> None:
        gain = math.sqrt(2.0 / (1 + math.sqrt(5) ** 2))  # torch's Kaiming initialisation
        bounds = math.sqrt(3.0) * (gain / math.sqrt(self._inputs)), 1 / math.sqrt(self._inputs)
        for array, bound in zip(self.parameters.values(), bounds, strict=True):
            array[...] = draws.uniform(bound, array.shape)

    def _product(self, rows: Array) -> Array:
        weight = self.parameters["weight"]
        return rows @ weight.reshape(len(weight), -1).T + self.parameters["bias"]

    def _gradients(self, rows: Array, slope: Array) -> dict[str, Array]:
        weight = (slope.T @ rows).reshape(self.parameters["weight"].shape)
        return {"weight": weight, "bias": slope.sum(0)}

    def _by_rows(self, slope: Array) -> Array:
        weight = self.parameters["weight"]
        product: Array = slope @ weight.reshape(len(weight), -1)
        return product


class Linear(Weighted):
    """Outputs are weighted sums of all inputs, plus a bias.

    Args:
        inputs: number of inputs.
        outputs: number of outputs.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__((outputs, inputs))

    def forward(self, inputs: Array, keep: bool) -> Array:
        if keep:
            self._rows = inputs
        return self._product(inputs)

    def backward(self, slope: Array, wanted: bool) -> tuple[Array | None, dict[str, Array]]:
        by_inputs = self._by_rows(slope) if wanted else None
        return by_inputs, self._gradients(self._rows, slope)


class Conv2d(Weighted):
    """A convolution with stride 1, as a product of matrices: a row for each place of the window.

    Args:
        channels: of the inputs.
        outputs: channels of the outputs.
        kernel: side of the window.
        padding: zeros around the inputs.
    """

    def __init__(self, channels: int, outputs: int, kernel: int, padding: int = 0) -> None:
        super().__init__((outputs, channels, kernel, kernel))
        self._kernel, self._padding = kernel, padding

    def forward(self, inputs: Array, keep: bool) -> Array:
        around = ((0, 0), (0, 0), *((self._padding, self._padding),) * 2)
        padded = np.pad(inputs, around) if self._padding else inputs
        windows = sliding_window_view(padded, (self._kernel,) * 2, (2, 3))
        num, _, height, width = windows.shape[:4]
        rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(num * height * width, -1)
        if keep:
            self._rows, self._shape = rows, padded.shape
        return self._product(rows).reshape(num, height, width, -1).transpose(0, 3, 1, 2)

    def backward(self, slope: Array, wanted: bool) -> tuple[Array | None, dict[str, Array]]:
        num, outputs, height, width = slope.shape
        by_place = slope.transpose(0, 2, 3, 1).reshape(-1, outputs)
        gradients = self._gradients(self._rows, by_place)
        if not wanted:
            return None, gradients
        side, channels = self._kernel, self._shape[1]
        windows = self._by_rows(by_place).reshape(num, height, width, channels, side, side)
        padded = np.zeros(self._shape, np.float32)
        for i in range(side):
            for j in range(side):
                part = windows[..., i, j].transpose(0, 3, 1, 2)
                padded[:, :, i : i + height, j : j + width] += part
        inner = slice(self._padding, -self._padding or None)
        return padded[:, :, inner, inner], gradients


class MaxPool2d(Layer):
    """The largest entry of each square; of equal ones, the first in reading order gets the slope.

    Args:
        side: of the squares. Rows and columns that fill none are left out.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self._side = side

    def forward(self, inputs: Array, keep: bool) -> Array:
        parts = list(self._parts(inputs))
        largest = parts[0]
        for part in parts[1:]:
            largest = np.maximum(largest, part)
        if keep:
            self._shape, self._chosen = inputs.shape, []
            free = np.ones(largest.shape, bool)
            for part in parts:
                self._chosen.append(free & (part == largest))
                free &= ~self._chosen[-1]
        return largest

    def backward(self, slope: Array, wanted: bool) -> tuple[Array | None, dict[str, Array]]:
        by_inputs = np.zeros(self._shape, np.float32)
        for part, chosen in zip(self._parts(by_inputs), self._chosen, strict=True):
            part[...] = slope * chosen
        return by_inputs, {}

    def _parts(self, images: Array) -> Iterator[Array]:
        """Views of the first entries of all squares, of the second ones, ..."""
        side = self._side
        height, width = (length // side * side for length in images.shape[2:])
        for i in range(side):
            for j in range(side):
                yield images[:, :, i:height:side, j:width:side]


class Sequential:
    """Layers one after the other.

    Args:
        layers: in the order in which they compute.

    Attributes:
        frozen: names of the parameters that are not trained.
    """

    def __init__(self, *layers: Layer) -> None:
        self._layers = layers
        self.frozen: frozenset[str] = frozenset()

    def initialise(self, seed: int) -> None:
        """Set the weights that torch's module has after `torch.manual_seed`."""
        draws = Draws(seed)
        for layer in self._layers:
            layer.initialise(draws)

    @property
    def parameters(self) -> Mapping[str, Array]:
        """All parameters by the names and in the order of torch's ``state_dict``."""
        return {
            f"{place}.{name}": array
            for place, layer in enumerate(self._layers)
            for name, array in layer.parameters.items()
        }

    def bind(self, name: str, array: Array) -> None:
        """Compute with this array as the parameter `name` from now on."""
        place, _, own = name.partition(".")
        self._layers[int(place)].parameters[own] = array

    def __call__(self, inputs: Array, keep: bool = False) -> Array:
        """Outputs for a batch of inputs; with `keep`, `backward` can follow."""
        for layer in self._layers:
            inputs = layer.forward(inputs, keep)
        return inputs

    def backward(self, slope: Array) -> dict[str, Array]:
        """The gradient of the loss by every parameter.

        Args:
            slope: gradient by the outputs of the last call.
        """
        gradients: dict[str, Array] = {}
        first = next((p for p, layer in enumerate(self._layers) if layer.parameters), 0)
        by_outputs: Array | None = slope
        for place in range(len(self._layers) - 1, first - 1, -1):
            assert by_outputs is not None
            by_outputs, own = self._layers[place].backward(by_outputs, place > first)
            gradients |= {f"{place}.{name}": array for name, array in own.items()}
        return gradients
