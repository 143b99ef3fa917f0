"""State of a run as plain JSON and arrays, and back: exactly, and without pickle.

Structure goes to JSON, arrays stay arrays; one that is met twice is kept once, and is one again
afterwards. Of classes only those of this project are made, from their attributes, and nothing that
was read is ever called.
"""

import hashlib
import importlib
import json
import pickle
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

PACKAGE = "fl_app."
CONTAINERS: dict[str, type[Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
MAPPINGS: dict[str, type[Any]] = {"dict": dict, "counter": Counter}

Array = NDArray[Any]


class Freezer:
    """Turns objects into JSON and a list of arrays.

    Attributes:
        arrays: those met so far, to which the JSON refers by their place.
    """

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._places: dict[int, int] = {}

    def freeze(self, value: Any) -> Any:
        """The value as JSON.

        Raises:
            TypeError: it holds something that cannot be kept.
        """
        match value:
            case None | bool() | str():
                return value
            case np.generic():
                return {"$": "scalar", "of": self._array(np.asarray(value))}
            case Enum():
                return {"$": "enum", "of": _path(type(value)), "value": value.value}
            case int() | float():
                return value
            case np.ndarray():
                return {"$": "array", "of": self._array(value)}
            case bytes():
                return {"$": "bytes", "of": value.hex()}
            case np.random.Generator():
                return {"$": "rng", "of": self.freeze(value.bit_generator.state)}
            case list():
                return [self.freeze(item) for item in value]
            case deque():
                items = [self.freeze(item) for item in value]
                return {"$": "deque", "of": items, "longest": value.maxlen}
            case _ if type(value) in CONTAINERS.values():
                name = next(name for name, made in CONTAINERS.items() if made is type(value))
                return {"$": name, "of": [self.freeze(item) for item in value]}
            case Counter():
                return {"$": "counter", "of": self._items(value)}
            case defaultdict():
                factory = value.default_factory
                return {"$": "defaultdict", "by": _path(factory), "of": self._items(value)}
            case dict():
                return {"$": "dict", "of": self._items(value)}
            case _ if type(value).__module__.startswith(PACKAGE):
                return {"$": "object", "by": _path(type(value)), "of": self._attributes(value)}
        raise TypeError(f"a {type(value).__name__} cannot be kept in a checkpoint: {value!r:.80}")

    def _array(self, array: Array) -> int:
        place = self._places.get(id(array))
        if place is None:
            place = self._places[id(array)] = len(self.arrays)
            self.arrays.append(array)  # which also keeps its id from being used again
        return place

    def _items(self, mapping: Any) -> list[list[Any]]:
        return [[self.freeze(key), self.freeze(value)] for key, value in mapping.items()]

    def _attributes(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return {"$": "tuple", "of": [self.freeze(item) for item in value]}
        if hasattr(value, "__dict__"):
            return self.freeze(vars(value))
        return self.freeze({name: getattr(value, name) for name in type(value).__slots__})


def fingerprints(values: Mapping[str, Any]) -> dict[str, str]:
    """By name a digest of each value: another one means that the value has changed."""
    return {name: _fingerprint(value) for name, value in values.items()}


def _fingerprint(value: Any) -> str:
    freezer = Freezer()
    try:
        digest = hashlib.sha256(json.dumps(freezer.freeze(value)).encode())
    except TypeError:
        try:
            return hashlib.sha256(pickle.dumps(value)).hexdigest()
        except Exception:  # of all sorts; at least another object is noticed
            return f"object {id(value)}"
    for array in freezer.arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def thaw(frozen: Any, arrays: Sequence[Array]) -> Any:
    """What was frozen.

    Raises:
        ValueError: it names a class of somebody else, or something unknown.
    """
    if isinstance(frozen, list):
        return [thaw(item, arrays) for item in frozen]
    if not isinstance(frozen, dict):
        return frozen
    kind, of = frozen["$"], frozen["of"]
    match kind:
        case "array":
            return arrays[of]
        case "scalar":
            return arrays[of][()]
        case "bytes":
            return bytes.fromhex(of)
        case "rng":
            state = thaw(of, arrays)
            generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
            generator.bit_generator.state = state
            return generator
        case "enum":
            return _class(of)(frozen["value"])
        case "deque":
            return deque((thaw(item, arrays) for item in of), frozen["longest"])
        case "defaultdict":
            return defaultdict(_class(frozen["by"]), _pairs(of, arrays))
        case "object":
            return _object(_class(frozen["by"]), thaw(of, arrays))
    if kind in MAPPINGS:
        return MAPPINGS[kind](dict(_pairs(of, arrays)))
    if kind in CONTAINERS:
        return CONTAINERS[kind](thaw(item, arrays) for item in of)
    raise ValueError(f"unknown kind {kind!r} in a checkpoint")


def _pairs(items: Any, arrays: Sequence[Array]) -> list[tuple[Any, Any]]:
    return [(thaw(key, arrays), thaw(value, arrays)) for key, value in items]


def _object(cls: type[Any], attributes: Any) -> Any:
    if issubclass(cls, tuple):
        return cls(*attributes)
    made = object.__new__(cls)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)  # frozen ones as well
    return made


def _path(cls: Any) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(path: str) -> type[Any]:
    module, _, name = path.partition(":")
    if module == "builtins" and name in ("int", "list", "dict", "float"):
        return {"int": int, "list": list, "dict": dict, "float": float}[name]
    if module == "collections" and name == "deque":
        return deque
    if not module.startswith(PACKAGE):
        raise ValueError(f"a checkpoint names {path}, which is not one of this project's classes")
    found = getattr(importlib.import_module(module), name)
    if not isinstance(found, type):
        raise ValueError(f"a checkpoint names {path}, which is no class")
    return found
