"""How named arrays lie in one flat vector: trainable parameters first, then buffers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from fl_app.core.types import Array, Vector
from fl_app.core.vector import all_finite

# What PyTorch calls the running statistics of its normalisation layers. Only needed when arrays
# come without a module (`Layout.of_arrays`), as from an app that does not use this project.
BUFFER_SUFFIXES = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Entry:
    """One named array: its `name`, and its `shape` and `dtype` as its owner knows it.

    In the vector it is float32. `trainable` is false for a buffer.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool

    @property
    def size(self) -> int:
        """Number of its entries in the vector."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of a model's arrays.

    Attributes:
        entries: in the order in which the owner names them (a PyTorch state_dict's order).
    """

    entries: tuple[Entry, ...]

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> "Layout":
        """Layout of named arrays; integers and running statistics count as buffers."""
        entries = []
        for name, array in arrays.items():
            trainable = array.dtype.kind == "f" and not name.endswith(BUFFER_SUFFIXES)
            entries.append(Entry(name, array.shape, str(array.dtype), trainable))
        return cls(tuple(entries))

    @property
    def names(self) -> list[str]:
        """Names of the entries, in their order."""
        return [entry.name for entry in self.entries]

    @cached_property
    def size(self) -> int:
        """d: number of entries of the vector."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def num_trainable(self) -> int:
        """How many entries of the vector are trainable; they lead."""
        return sum(entry.size for entry in self.entries if entry.trainable)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Name -> place in the vector; trainable entries first."""
        places, start = {}, 0
        for entry in sorted(self.entries, key=lambda entry: not entry.trainable):
            places[entry.name] = slice(start, start + entry.size)
            start += entry.size
        return places

    def flatten(self, arrays: Sequence[Array]) -> Vector:
        """One vector of shape ``(d,)`` from arrays in the order of `entries`.

        Raises:
            ValueError: the number of arrays or the shape of one does not fit.
        """
        if len(arrays) != len(self.entries):
            raise ValueError(f"got {len(arrays)} arrays, the model has {len(self.entries)}")
        vector = np.empty(self.size, np.float32)
        for entry, array in zip(self.entries, arrays, strict=True):
            if tuple(array.shape) != entry.shape:
                raise ValueError(
                    f"array {entry.name!r} has shape {tuple(array.shape)}, "
                    f"the model's has {entry.shape}"
                )
            vector[self.slices[entry.name]] = array.reshape(-1)
        return vector

    def unflatten(self, vector: Vector) -> list[Array]:
        """Arrays in the order and with the dtypes of `entries`; float32 ones share memory."""
        arrays = []
        for entry in self.entries:
            flat = vector[self.slices[entry.name]]
            if np.dtype(entry.dtype).kind in "iub":
                flat = np.rint(flat)
            arrays.append(flat.astype(entry.dtype, copy=False).reshape(entry.shape))
        return arrays

    def named(self, vector: Vector) -> dict[str, Array]:
        """Arrays of a vector ``(d,)`` by name, as `unflatten` makes them."""
        return dict(zip(self.names, self.unflatten(vector), strict=True))


def check_vector(vector: Any, size: int) -> str:
    """Why `vector` may not be aggregated, or "" if it may: float32, ``(size,)``, finite."""
    if problem := check_shape(vector, size):
        return problem
    return "" if all_finite([vector]) else "payload has non-finite entries"


def check_shape(vector: object, size: int) -> str:
    """Why `vector` is none of float32 and ``(size,)``, or "" if it is."""
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float32:
        return f"payload is {getattr(vector, 'dtype', type(vector).__name__)}, expected float32"
    if vector.shape != (size,):
        return f"payload has shape {vector.shape}, expected ({size},)"
    return ""


def check_returned(method: str, vector: object, size: int) -> str:
    """Why the result of an author's `method` is no model, and the remedy; "" if it is one."""
    if vector is None:
        return f"{method} returned None, expected a vector: a return statement is missing"
    if not isinstance(vector, np.ndarray):
        kind = type(vector).__name__
        return f"{method} returned a {kind}, expected a NumPy array: np.asarray(..., np.float32)"
    if vector.dtype != np.float32:
        return f"{method} returned {vector.dtype}, expected float32: use .astype(np.float32)"
    if vector.shape != (size,):
        return f"{method} returned shape {vector.shape}, expected that of model.params, ({size},)"
    return ""


def check_extra(extra: object, names: Collection[str], size: int) -> str:
    """Why extra vectors are not those expected, or "" if they are."""
    if not isinstance(extra, Mapping) or extra.keys() != set(names):
        actual = names_of(extra) if isinstance(extra, Mapping) else type(extra).__name__
        return f"extra vectors are {actual or 'none'}, expected {names_of(names) or 'none'}"
    for name, vector in extra.items():
        if problem := check_shape(vector, size):
            return f"extra vector {name!r}: {problem}"
    return ""


def names_of(arrays: Iterable[str], limit: int = 4) -> str:
    """The first names, for a message."""
    names = list(arrays)
    return ", ".join(names[:limit]) + ", ..." * (len(names) > limit)
