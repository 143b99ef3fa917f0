"""What workers return, as the engine gets it: large vectors stay in the cluster's store."""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.core.types import NO_EXTRA, Reply


class Results:
    """Replies without copies of their large vectors.

    The engine reads such a vector where it lies in the store, which frees it when no array is on
    it any more. Once vectors of `most_bytes` are there, further ones are copied into memory of this
    process. So are small arrays always, since one of them would keep the whole result of a call in
    the store.

    Args:
        most_bytes: of the vectors that stay in the store at a time.
        small_bytes: size of an array up to which it is copied.
    """

    def __init__(self, most_bytes: int, small_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._small_bytes = small_bytes
        self._numbers = count()
        self._kept: dict[int, int] = {}  # bytes of a call's vectors

    @property
    def num_bytes(self) -> int:
        """Of the vectors that are read in the store."""
        return sum(list(self._kept.values()))  # a list, as another thread may free one meanwhile

    def take(self, replies: Iterable[Reply]) -> list[Reply]:
        """The replies of a call, which may be kept for as long as one likes.

        Args:
            replies: whose arrays may lie in the store, and are read-only there.
        """
        replies = list(replies)
        large = [
            array
            for reply in replies
            for array in _arrays_of(reply)
            if array.nbytes > self._small_bytes
        ]
        size = sum(array.nbytes for array in large)
        if not large or self.num_bytes + size > self._most_bytes:
            return [owned(reply) for reply in replies]
        self._keep(large, size)
        return [owned(reply, self._small_bytes) for reply in replies]

    def _keep(self, arrays: Iterable[NDArray[Any]], size: int) -> None:
        """Count the arrays of a call until all of them, and all views of them, are gone."""
        number = next(self._numbers)
        self._kept[number] = size
        left = {id(array): array for array in map(_bottom, arrays)}
        pending = set(left)

        def freed(key: int) -> None:
            pending.discard(key)
            if not pending:
                self._kept.pop(number, None)

        for key, array in left.items():
            weakref.finalize(array, freed, key).atexit = False


def owned(reply: Reply, small_bytes: float = float("inf")) -> Reply:
    """A reply whose arrays lie in memory of this process, and no longer in the store.

    Args:
        reply: of a worker.
        small_bytes: larger arrays are left where they are.
    """
    upload = reply.upload
    if upload is None:
        return reply

    def copy(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: copy(entry) for name, entry in value.items()}
        if not isinstance(value, np.ndarray):
            return value  # malformed, which the engine refuses
        copied = value.copy() if value.nbytes <= small_bytes else value
        copied.flags.writeable = False
        return copied

    return replace(
        reply,
        upload=replace(
            upload,
            vector=copy(upload.vector),
            state=copy(upload.state),
            extra=copy(upload.extra) or NO_EXTRA,
        ),
    )


def _arrays_of(reply: Reply) -> Iterator[NDArray[Any]]:
    if reply.upload is not None:
        yield from _arrays_in(reply.upload.vector)
        yield from _arrays_in(reply.upload.state)
        yield from _arrays_in(reply.upload.extra)


def _arrays_in(value: Any) -> Iterator[NDArray[Any]]:
    if isinstance(value, Mapping):
        for entry in value.values():
            yield from _arrays_in(entry)
    elif isinstance(value, np.ndarray):
        yield value


def _bottom(array: NDArray[Any]) -> NDArray[Any]:
    """The array to which all views of an array point, directly or through others."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
