"""The state of a run as bytes and back, exactly: a pickle of plain data, arrays and generators.

A pickle can call anything that its reader lets it call. Here it may name `ALLOWED` alone:
collections, the records of a run, and functions that make an array or a random generator of plain
data. So a file from elsewhere runs no code of its own, but it can set attributes of what it names,
and spoil what this process does later. An object that occurs twice is one object again.
"""

import io
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from types import FunctionType
from typing import Any, ClassVar, Protocol

import numpy as np

from fl_app.core.types import Array, Order, Reply, Scores, Update, Upload

GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


class Remembers(Protocol):
    """Has attributes that a checkpoint saves and restores: plain data and arrays.

    Attributes:
        transient: names of attributes that no checkpoint holds, since they can be computed again,
            beside those that the bases name.
    """

    transient: ClassVar[Collection[str]] = ()

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the transient ones; overridden where one of them holds objects.

        A checkpoint holds numbers, strings, arrays, lists, dicts, random generators and the like,
        and refuses anything else.
        """
        hidden = {name for cls in type(self).__mro__ for name in getattr(cls, "transient", ())}
        return {name: value for name, value in vars(self).items() if name not in hidden}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state_dict`."""
        for name, value in state.items():
            vars(self)[name] = copy(value)  # of a frozen dataclass, too


class Unkeepable(ValueError):
    """A value that no checkpoint can hold."""


def dumps(value: Any) -> bytes:
    """A value as bytes.

    Raises:
        Unkeepable: it holds something that is neither plain data nor in `ALLOWED`; the message
            says what, and the keys that lead to it.
    """
    try:
        return _packed(value)
    except Unkeepable as error:
        raise Unkeepable(
            f"{_key_path(value).lstrip('.') or 'the value'} is {error}, which a checkpoint cannot "
            "hold: keep numbers, strings, arrays, lists, dicts and random generators, and name an "
            "attribute that can be computed again in the `transient` of its class"
        ) from None


def loads(packed: bytes) -> Any:
    """The value from the bytes of `dumps`.

    Raises:
        ValueError: it names something that is not in `ALLOWED`.
    """
    return _Unpickler(io.BytesIO(packed)).load()


def _array(content: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    return np.frombuffer(content, dtype).reshape(shape)


def _scalar(array: Array) -> Any:
    return array[()]


def _generator(state: dict[str, Any]) -> np.random.Generator:
    name = state["bit_generator"]
    if name not in GENERATORS:
        raise ValueError(f"a checkpoint holds a random generator of the unknown kind {name!r}")
    generator = np.random.Generator(getattr(np.random, name)())
    generator.bit_generator.state = state
    return generator


# Classes are written by their names, objects of them by what they hold.
ALLOWED: frozenset[Any] = frozenset(
    (
        *(_array, _scalar, _generator, Order, Update, Upload, Reply, Scores),
        *(Counter, OrderedDict, defaultdict, deque),
        *(int, float, list, dict, set),  # as a `defaultdict` makes them
    )
)
_BY_NAME = {(each.__module__, each.__qualname__): each for each in ALLOWED}


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            content = pickle.PickleBuffer(np.asarray(value, order="C").data)
            return _array, (content, value.dtype.str, value.shape)
        if isinstance(value, np.bool_ | np.number):
            return _scalar, (np.asarray(value),)
        if isinstance(value, np.random.Generator):
            return _generator, (value.bit_generator.state,)
        is_named = isinstance(value, type | FunctionType)
        if (value if is_named else type(value)) in ALLOWED:
            return NotImplemented
        kind = f"a {type(value).__name__}"
        raise Unkeepable(f"an array of {value.dtype}" if isinstance(value, np.ndarray) else kind)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _BY_NAME[module, name]
        except KeyError:
            raise ValueError(
                f"a checkpoint holds {module}.{name}, which is no plain data"
            ) from None


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, 5).dump(value)
    return buffer.getvalue()


def _key_path(value: Any) -> str:
    """The keys that lead to what cannot be kept, each after a dot."""
    pairs: Iterable[tuple[object, Any]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list | tuple):
        pairs = enumerate(value)
    for key, part in pairs:
        try:
            _packed(part)
        except Unkeepable:
            return f".{key}{_key_path(part)}"
    return ""
