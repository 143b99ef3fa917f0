"""Models and extra vectors as arrays of a message, and back.

A vector travels as named arrays, as one array (``packed``) or, if most of its entries are 0, as the
others with their places (``top-k``). Nothing is ever unpickled: Flower writes arrays in NumPy's
format and reads them with pickle off.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.common import Scalar
from numpy.typing import NDArray

from fl_app.core.layout import Layout, names_of
from fl_app.core.npy import reading
from fl_app.core.types import Extra, Vector
from fl_app.core.vector import read_only
from fl_app.flower.names import (
    BUFFERS,
    ENTRIES,
    EXTRA_ENTRIES,
    EXTRA_PLACES,
    MASKED,
    PACKED,
    PLACES,
    TOP_K,
    VECTOR,
)


def layout_of(record: ArrayRecord) -> Layout:
    """How the arrays of a record lie in one vector."""
    return Layout.of_arrays({name: to_numpy(name, array) for name, array in record.items()})


def to_arrays(vector: Vector, layout: Layout) -> ArrayRecord:
    """A vector of shape ``(d,)`` as named arrays with their own shapes and dtypes, serialised."""
    return ArrayRecord({name: Array(array) for name, array in layout.named(vector).items()})


def from_arrays(record: ArrayRecord, layout: Layout) -> Vector:
    """The inverse of `to_arrays`; a new, read-only vector.

    Raises:
        ValueError: names, shapes or dtypes are not those of the layout.
    """
    with np.errstate(over="ignore"):  # a float64 too large becomes inf, which is refused later
        vector = layout.flatten(read(record, layout))
    vector.flags.writeable = False
    return vector


def read(record: ArrayRecord, layout: Layout) -> list[NDArray[np.generic]]:
    """Arrays in the layout's order, of any width in bytes.

    Raises:
        ValueError: names or kinds of dtypes are not those of the layout.
    """
    missing = [name for name in layout.names if name not in record]
    unexpected = [name for name in record if name not in layout.slices]
    if missing or unexpected:
        raise ValueError(
            "arrays do not fit the model: "
            f"missing {names_of(missing) or 'none'}; unexpected {names_of(unexpected) or 'none'}"
        )
    arrays = []
    for entry in layout.entries:
        array = to_numpy(entry.name, record[entry.name])
        if array.dtype.kind != np.dtype(entry.dtype).kind:
            raise ValueError(
                f"array {entry.name!r} has dtype {array.dtype}, the model's has {entry.dtype}"
            )
        arrays.append(array)
    return arrays


def vector_of(record: ArrayRecord, layout: Layout, encoding: Scalar | None) -> Vector:
    """An upload's vector ``(d,)``, read-only, from any of its encodings.

    Raises:
        ValueError: the arrays do not fit the model or the encoding.
    """
    if encoding == PACKED:
        return read_only(packed_vector(record, layout))
    if encoding == MASKED:
        return read_only(_masked_vector(record, layout))
    if encoding != TOP_K:
        return from_arrays(record, layout)
    named = {name: to_numpy(name, array) for name, array in record.items()}
    buffers = {entry.name: entry.shape for entry in layout.entries if not entry.trainable}
    if named.keys() != {PLACES, ENTRIES, *buffers}:
        raise ValueError(f"a {TOP_K} upload must hold {PLACES}, {ENTRIES} and the model's buffers")
    places, entries = named.pop(PLACES), named.pop(ENTRIES)
    _check_places(places, entries, layout)
    for name, shape in buffers.items():
        if named[name].shape != shape:
            raise ValueError(f"array {name!r} has shape {named[name].shape}, the model's {shape}")
    vector = np.zeros(layout.size, np.float32)
    vector[places] = entries
    for name, array in named.items():
        vector[layout.slices[name]] = array.reshape(-1)
    vector.flags.writeable = False
    return vector


def _masked_vector(record: ArrayRecord, layout: Layout) -> Vector:
    """The bits of masked integers."""
    if [*record] != [MASKED]:
        raise ValueError(f"a masked upload must hold {MASKED} alone, got {names_of(record)}")
    integers = to_numpy(MASKED, record[MASKED])
    if integers.dtype != np.uint32 or integers.shape != (layout.size,):
        raise ValueError(
            f"{MASKED} is {integers.dtype}{list(integers.shape)}, expected uint32[{layout.size}]"
        )
    return integers.view(np.float32)


def _check_places(
    places: NDArray[np.generic], entries: NDArray[np.generic], layout: Layout
) -> None:
    one_each = places.ndim == 1 and places.shape == entries.shape
    if not (one_each and places.dtype == np.uint32 and entries.dtype.kind == "f"):
        raise ValueError(f"a {TOP_K} upload must hold one floating entry for every uint32 place")
    # They increase, so none occurs twice, and the last one is the largest.
    ends = np.diff(places.astype(np.int64), append=layout.num_trainable)
    if (ends <= 0).any():
        raise ValueError(f"{PLACES} must increase and be below {layout.num_trainable}")


def packed_vector(record: ArrayRecord, layout: Layout) -> Vector:
    """The vector ``(d,)``, float32, that is the only array of a record.

    Raises:
        ValueError: the record holds something else.
    """
    arrays = {name: to_numpy(name, array) for name, array in record.items()}
    vector = arrays.get(PACKED)
    fits = vector is not None and vector.dtype == np.float32 and vector.shape == (layout.size,)
    if vector is None or not fits or len(arrays) > 1:
        found = [f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items()]
        raise ValueError(
            f"arrays do not fit the model: expected {PACKED} float32[{layout.size}], "
            f"got {names_of(found) or 'none'}"
        )
    return vector.astype(np.float32, copy=False)


def packable(dtypes: Iterable[np.typing.DTypeLike]) -> bool:
    """Whether a float32 vector takes at most as many bytes as arrays of these dtypes."""
    return all(np.dtype(dtype).itemsize >= 4 for dtype in dtypes)


def to_sparse(
    named: Mapping[str, NDArray[np.generic]], layout: Layout
) -> dict[str, NDArray[np.generic]]:
    """Arrays with mostly zero entries in the top-k encoding, see `vector_of`."""
    vector = layout.flatten(list(named.values()))[: layout.num_trainable]
    places = np.flatnonzero(vector).astype(np.uint32)
    dtype = next(named[entry.name].dtype for entry in layout.entries if entry.trainable)
    buffers = {entry.name: named[entry.name] for entry in layout.entries if not entry.trainable}
    return {PLACES: places, ENTRIES: vector[places].astype(dtype), **buffers}


def to_numpy(name: str, array: Array) -> NDArray[np.generic]:
    """An array of a message.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        with reading:
            found = array.numpy()
        if not isinstance(found, np.ndarray):
            raise TypeError(f"it holds a {type(found).__name__}")
    except Exception as error:  # bytes from elsewhere may raise anything
        raise ValueError(
            f"array {name!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
    return found


# -- vectors beside the model ---------------------------------------------------------------------


def extra_record(
    extra: Extra, layout: Layout, dtype: np.typing.DTypeLike = np.float32, *, sparse: bool = False
) -> ArrayRecord:
    """Vectors beside the model, encoded as the model's own upload is.

    Args:
        extra: by name, shape ``(d,)``.
        layout: of the model.
        dtype: of trainable entries.
        sparse: most trainable entries are 0.
    """
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, vector in extra.items():
        entries, buffers = np.split(vector, [layout.num_trainable])
        if np.dtype(dtype) == np.float32 and not sparse:
            arrays[f"{VECTOR}:{name}"] = vector
            continue
        if sparse:
            places = np.flatnonzero(entries).astype(np.uint32)
            entries, arrays[f"{EXTRA_PLACES}:{name}"] = entries[places], places
        with np.errstate(over="ignore"):  # infinite entries are refused by the receiver
            arrays[f"{EXTRA_ENTRIES}:{name}"] = entries.astype(dtype)
        arrays[f"{BUFFERS}:{name}"] = buffers
    return ArrayRecord({key: Array(array) for key, array in arrays.items()})


def from_extra_record(record: ArrayRecord, layout: Layout) -> Extra:
    """The inverse of `extra_record`; read-only vectors.

    Raises:
        ValueError: an array cannot be read, or does not fit the model.
    """
    parts: dict[str, dict[str, NDArray[np.generic]]] = {}
    for key, array in record.items():
        part, _, name = key.partition(":")
        parts.setdefault(name, {})[part] = to_numpy(key, array)
    return {name: _extra_vector(name, found, layout) for name, found in parts.items()}


def _extra_vector(name: str, found: dict[str, NDArray[np.generic]], layout: Layout) -> Vector:
    if found.keys() == {VECTOR}:
        vector = found[VECTOR]
        if vector.dtype != np.float32 or vector.shape != (layout.size,):
            raise ValueError(
                f"extra vector {name!r} is {vector.dtype}{list(vector.shape)}, "
                f"expected float32[{layout.size}]"
            )
        return read_only(vector.astype(np.float32, copy=False))
    if found.keys() - {EXTRA_PLACES} != {EXTRA_ENTRIES, BUFFERS}:
        raise ValueError(f"extra vector {name!r} holds {names_of(found)}")
    split, entries, buffers = layout.num_trainable, found[EXTRA_ENTRIES], found[BUFFERS]
    made = np.zeros(layout.size, np.float32)
    whole = made[:split]
    if EXTRA_PLACES in found:
        _check_places(found[EXTRA_PLACES], entries, layout)
        whole[found[EXTRA_PLACES]] = entries
    elif entries.dtype.kind == "f" and entries.shape == whole.shape:
        whole[:] = entries
    else:
        raise ValueError(f"extra vector {name!r} must have {split} floating trainable entries")
    if buffers.dtype != np.float32 or buffers.shape != (layout.size - split,):
        raise ValueError(f"extra vector {name!r} must have {layout.size - split} float32 buffers")
    made[split:] = buffers
    made.flags.writeable = False
    return made
