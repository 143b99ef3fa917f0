"""Encodes the state of a run as JSON and arrays, and decodes it exactly, without pickle.

The structure goes to JSON and arrays stay arrays. An array that occurs twice is stored once and is
one array again afterwards. No class is stored: orders, updates, uploads and replies are written as
their fields under the name of their kind, and everything else is plain data.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fl_app.core.types import Order, Reply, Scores, Update, Upload

COLLECTIONS: dict[str, type[Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
MAPPINGS: dict[str, type[Any]] = {"dict": dict, "counter": Counter, "ordered": OrderedDict}
FACTORIES: dict[str, type[Any]] = {
    made.__name__: made for made in (int, float, list, dict, set, deque, Counter)
}
GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
RECORDS: dict[str, type[Any]] = {
    made.__name__.lower(): made for made in (Order, Update, Upload, Reply, Scores)
}

_NAMES: dict[type[Any], str] = {
    made: name for table in (COLLECTIONS, MAPPINGS, RECORDS) for name, made in table.items()
}
_FIELDS = {made: [each.name for each in fields(made)] for made in RECORDS.values()}

Array = NDArray[Any]


class Remembers(Protocol):
    """What changes during a run, and goes on from a checkpoint.

    Attributes:
        remembers: names of the attributes that a checkpoint holds.
    """

    remembers: ClassVar[Sequence[str]] = ()

    def state_dict(self) -> dict[str, Any]:
        """What is remembered between two events, for a checkpoint: plain data and arrays."""
        return {name: getattr(self, name) for name in self.remembers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what was remembered."""
        for name in self.remembers:
            setattr(self, name, copy(state[name]))


class Unkeepable(TypeError):
    """A value that no checkpoint can hold, and the keys that lead to it."""

    def __init__(self, value: object) -> None:
        self.value = value
        self.keys: list[str] = []  # innermost first

    def __str__(self) -> str:
        what = f"a {type(self.value).__name__}"
        if isinstance(self.value, np.ndarray):
            what = f"an array of {self.value.dtype}"
        return (
            f"{'.'.join(reversed(self.keys)) or 'the value'} is {what}, which a checkpoint cannot "
            "hold: keep numbers, strings, arrays, lists, dicts and random generators"
        )


class Encoder:
    """Turns values into JSON and a list of arrays.

    Attributes:
        arrays: those met so far; the JSON refers to them by their place.
    """

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._places: dict[int, int] = {}

    def encode(self, value: Any) -> Any:
        """The value as JSON.

        Raises:
            Unkeepable: it holds something that is neither plain data nor one of `RECORDS`.
        """
        made = type(value)
        if value is None or made in (bool, int, float, str):
            return value
        if made is list:
            return self._items(value)
        if made in COLLECTIONS.values():
            return {"$": _NAMES[made], "of": self._items(value)}
        if made in MAPPINGS.values():
            return {"$": _NAMES[made], "of": self._pairs(value)}
        if made in _FIELDS:
            held = {name: getattr(value, name) for name in _FIELDS[made]}
            return {"$": _NAMES[made], "of": {n: self._at(n, v) for n, v in held.items()}}
        match value:
            case np.ndarray() if value.dtype.kind in "biufc":
                return {"$": "array", "of": self._array(value)}
            case np.bool_() | np.number():
                return {"$": "scalar", "of": self._array(np.asarray(value))}
            case bytes():
                return {"$": "bytes", "of": value.hex()}
            case np.random.Generator():
                return {"$": "rng", "of": self.encode(value.bit_generator.state)}
            case deque():
                return {"$": "deque", "of": self._items(value), "maxlen": value.maxlen}
            case defaultdict() if value.default_factory in FACTORIES.values():
                by = value.default_factory.__name__  # type: ignore[union-attr]
                return {"$": "defaultdict", "by": by, "of": self._pairs(value)}
        raise Unkeepable(value)

    def _array(self, array: Array) -> int:
        place = self._places.get(id(array))
        if place is None:
            place = self._places[id(array)] = len(self.arrays)
            self.arrays.append(array)  # which also keeps its id from being used again
        return place

    def _items(self, values: Iterable[Any]) -> list[Any]:
        return [self._at(place, value) for place, value in enumerate(values)]

    def _pairs(self, mapping: Mapping[Any, Any]) -> list[list[Any]]:
        return [[self._at(key, key), self._at(key, value)] for key, value in mapping.items()]

    def _at(self, key: object, value: Any) -> Any:
        try:
            return self.encode(value)
        except Unkeepable as error:
            error.keys.append(str(key))
            raise


def decode(encoded: Any, arrays: Sequence[Array]) -> Any:
    """The value that was encoded.

    Raises:
        ValueError: it is of an unknown kind.
    """
    if isinstance(encoded, list):
        return [decode(item, arrays) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    kind, of = encoded["$"], encoded["of"]
    match kind:
        case "array":
            return arrays[of]
        case "scalar":
            return arrays[of][()]
        case "bytes":
            return bytes.fromhex(of)
        case "rng":
            return _generator(decode(of, arrays))
        case "deque":
            return deque((decode(item, arrays) for item in of), encoded["maxlen"])
        case "defaultdict" if encoded["by"] in FACTORIES:
            return defaultdict(FACTORIES[encoded["by"]], _decoded_pairs(of, arrays))
    if kind in RECORDS:
        return RECORDS[kind](**{name: decode(value, arrays) for name, value in of.items()})
    if kind in MAPPINGS:
        return MAPPINGS[kind](dict(_decoded_pairs(of, arrays)))
    if kind in COLLECTIONS:
        return COLLECTIONS[kind](decode(item, arrays) for item in of)
    raise ValueError(f"a checkpoint holds a value of the unknown kind {encoded.get('by', kind)!r}")


def _decoded_pairs(items: Any, arrays: Sequence[Array]) -> list[tuple[Any, Any]]:
    return [(decode(key, arrays), decode(value, arrays)) for key, value in items]


def _generator(state: Mapping[str, Any]) -> np.random.Generator:
    name = state["bit_generator"]
    if name not in GENERATORS:
        raise ValueError(f"a checkpoint holds a random generator of the unknown kind {name!r}")
    generator = np.random.Generator(getattr(np.random, name)())
    generator.bit_generator.state = state
    return generator
