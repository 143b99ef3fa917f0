"""A network of NumPy arrays as one flat vector, without what is frozen or private."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl_app.client.patterns import check_parts, matching, require_same
from fl_app.core.layout import Entry, Layout
from fl_app.core.types import State, Vector


class Network(Protocol):
    """What `ArrayModel` needs of a network (`fl_app.tasks.models.layers.Sequential`)."""

    frozen: frozenset[str]
    """Names of the parameters that are not trained."""

    @property
    def parameters(self) -> Mapping[str, NDArray[np.float32]]:
        """All parameters by name, in the order of torch's ``state_dict`` of the same network."""
        ...

    def bind(self, name: str, array: NDArray[np.float32]) -> None:
        """Compute with this array as the parameter `name` from now on."""
        ...


class ArrayModel:
    """What `fl_app.client.flat.FlatModel` is for a module of torch; names and digests are equal.

    Args:
        network: taken over; its shared parameters become views into the vector.
        private: patterns (`fnmatch`) of the names of private parameters.

    Attributes:
        module: the network.
        layout: names and places in the vector.
        flat: shape ``(d,)``.
        params: the parameters in the vector, views into `flat`, in the layout's order.
        trained: `params`, followed by the private parameters.
        trained_names: names of `trained`.
        frozen: the frozen parameters by name.
        private: the private parameters by name.

    Raises:
        ValueError: no parameter would be trained and shared, or a private pattern matches nothing
            or a frozen parameter.
    """

    def __init__(self, network: Network, private: Sequence[str] = ()) -> None:
        self.module = network
        arrays = dict(network.parameters)
        own = matching("algorithm.client.private", private, arrays)
        self.frozen = {name: arrays[name] for name in arrays if name in network.frozen}
        check_parts(arrays, self.frozen, own, private)
        self.private = {name: arrays[name] for name in arrays if name in own}
        self.layout = Layout(
            tuple(
                Entry(name, array.shape, "float32", True)
                for name, array in arrays.items()
                if name not in self.frozen and name not in own
            )
        )
        self._names = tuple(arrays)
        self.flat = np.zeros(self.layout.size, np.float32)
        self.params = []
        for entry in self.layout.entries:
            view = self.flat[self.layout.slices[entry.name]].reshape(entry.shape)
            view[...] = arrays[entry.name]
            network.bind(entry.name, view)
            self.params.append(view)
        self.trained = [*self.params, *self.private.values()]
        self.trained_names = [*self.layout.names, *self.private]
        self._initial = {name: array.copy() for name, array in self.private.items()}
        self._fixed = {**self.frozen, **self._initial}

    def load(self, vector: Vector) -> None:
        """Set the parameters from a vector of shape ``(d,)``."""
        np.copyto(self.flat, vector)

    def read(self, out: Vector | None = None, start: int = 0) -> Vector:
        """The current parameters from entry `start` on, in `out` or a new vector."""
        vector = np.empty(self.layout.size - start, np.float32) if out is None else out
        np.copyto(vector, self.flat[start:])
        return vector

    def named(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        """All arrays by name; see `fl_app.client.flat.FlatModel.named`."""
        arrays: dict[str, NDArray[Any]] = {**self.layout.named(vector), **self._fixed}
        return {name: arrays[name] for name in self._names}

    # -- private ----------------------------------------------------------------------------------

    def read_private(self) -> dict[str, NDArray[np.generic]]:
        """Copies of the private parameters by name."""
        return {name: array.copy() for name, array in self.private.items()}

    def load_private(self, arrays: State) -> None:
        """Set the private parameters; those that `arrays` lacks get their initial values."""
        for name, array in self.private.items():
            array[...] = arrays.get(name, self._initial[name])

    # -- fixed part -------------------------------------------------------------------------------

    @property
    def fixed_digest(self) -> str:
        """SHA-256 of the fixed part, the same as of a `FlatModel`; "" if there is none."""
        digest = hashlib.sha256()
        for name, array in self._fixed.items():
            digest.update(f"{name} torch.float32 {array.shape}\n".encode())
            digest.update(array.tobytes())
        return digest.hexdigest() if self._fixed else ""

    def fixed_bytes(self) -> dict[str, NDArray[np.uint8]]:
        """The bytes of the fixed part by name."""
        return {name: array.reshape(-1).view(np.uint8) for name, array in self._fixed.items()}

    @property
    def num_fixed_bytes(self) -> int:
        """Size of the fixed part."""
        return sum(array.nbytes for array in self._fixed.values())

    def load_fixed(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Set the fixed part from its bytes; private parameters get their initial values.

        Raises:
            ValueError: names or sizes are not those of the fixed part.
        """
        expected = {name: array.nbytes for name, array in self._fixed.items()}
        require_same(expected, {name: array.nbytes for name, array in arrays.items()})
        for name, array in self._fixed.items():
            array[...] = arrays[name].view(np.uint8).view(np.float32).reshape(array.shape)
        self.load_private({})


N = TypeVar("N", bound=Network)


def trainable_only(make: Callable[[], N], patterns: Sequence[str]) -> Callable[[], N]:
    """As `fl_app.client.flat.trainable_only`: all other parameters are frozen."""
    return partial(_with_trainable, make, tuple(patterns))


def _with_trainable(make: Callable[[], N], patterns: Sequence[str]) -> N:
    network = make()
    chosen = matching("task.trainable", patterns, network.parameters)
    network.frozen = frozenset(network.parameters) - chosen
    return network
