"""What travels to workers: orders without their vectors, and tasks whose arrays are not copied."""

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_app.core.types import NO_EXTRA, Order, Vector
from fl_app.engine.clock import NO_VECTOR

NOTHING = -1  # in place of a vector's place: it is empty
SMALL = 4096  # bytes; smaller arrays are copied, since there may be one for each client


@dataclass(frozen=True, slots=True)
class Parcel:
    """An order whose vectors travel beside it, so that several orders can share one.

    Attributes:
        order: without vectors.
        place: of its vector among those of the call; `NOTHING` = it is empty.
        extra: places of its extra vectors, by name.
    """

    order: Order
    place: int
    extra: dict[str, int]


def pack(
    orders: Sequence[Order], reference: Callable[[Vector], Any]
) -> tuple[list[Parcel], list[Any]]:
    """Parcels of some orders, and the references to the vectors that they share.

    Args:
        orders: in the sequence in which they are to be carried out.
        reference: gives the reference to a vector in the store.
    """
    places: dict[int, int] = {}
    references: list[Any] = []

    def place(vector: Vector) -> int:
        if not vector.size:
            return NOTHING
        if id(vector) not in places:
            places[id(vector)] = len(references)
            references.append(reference(vector))
        return places[id(vector)]

    return [
        Parcel(
            replace(order, vector=NO_VECTOR, extra=NO_EXTRA),
            place(order.vector),
            {name: place(vector) for name, vector in order.extra.items()},
        )
        for order in orders
    ], references


def unpack(parcels: Sequence[Parcel], vectors: Sequence[Vector]) -> list[Order]:
    """The orders of a call, with its vectors."""

    def vector(place: int) -> Vector:
        return NO_VECTOR if place == NOTHING else vectors[place]

    return [
        replace(
            parcel.order,
            vector=vector(parcel.place),
            extra={name: vector(place) for name, place in parcel.extra.items()} or NO_EXTRA,
        )
        for parcel in parcels
    ]


Packed: TypeAlias = tuple[bytes, list[NDArray[np.uint8]]]
"""A pickle, and the contents of its arrays, which all processes of a machine can share."""


def pack_object(value: Any) -> Packed:
    """Pickle any object, also functions and classes of a script or a notebook.

    Raises:
        ValueError: it cannot be pickled.
    """
    from ray import cloudpickle

    class Pickler(cloudpickle.CloudPickler):
        """Hands over tensors as arrays: torch's own way copies them."""

        def reducer_override(self, obj: Any) -> Any:
            array = _array_of(obj)
            if array is None:
                return super().reducer_override(obj)  # type: ignore[no-untyped-call]
            return _tensor_of, (array,)

    buffers: list[NDArray[np.uint8]] = []

    def beside(buffer: pickle.PickleBuffer) -> bool:
        """Whether the contents of an array are part of the pickle."""
        content = buffer.raw()
        if content.nbytes >= SMALL:
            buffers.append(np.frombuffer(content, np.uint8))
        return content.nbytes < SMALL

    file = io.BytesIO()
    try:
        pickler: Any = Pickler(file, 5, beside)  # type: ignore[no-untyped-call]
        pickler.dump(value)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ValueError(
            f"{type(value).__name__} cannot be sent to other machines: {error}"
        ) from error
    return file.getvalue(), buffers


def unpack_object(packed: Packed) -> Any:
    """The object of `pack_object`; its arrays are read-only, and those that were packed."""
    content, buffers = packed
    return pickle.loads(content, buffers=buffers)


def _array_of(value: Any) -> NDArray[Any] | None:
    """An array on the memory of a tensor; None of anything else, and of unusual tensors."""
    import torch

    if (
        type(value) is not torch.Tensor
        or value.device.type != "cpu"
        or value.layout != torch.strided
        or value.requires_grad
        or not value.is_contiguous()
    ):
        return None
    try:
        array: NDArray[Any] = value.numpy()
    except (TypeError, RuntimeError):  # a type that NumPy does not know
        return None
    return array


def _tensor_of(array: NDArray[Any]) -> Any:
    """A tensor on the memory of an array."""
    import warnings

    import torch

    with warnings.catch_warnings():
        # torch cannot mark a tensor as read-only. Training reads data and does not write to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
