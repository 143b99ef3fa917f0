"""Model versions in the cluster's object store: each is put once, and freed. Small ones are not."""

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from fl_app.core.types import Vector


class Versions:
    """References to vectors in the store.

    A reference is kept until its vector is garbage here, or until newer ones have taken its place:
    then it is put again if an order needs it. What a call in progress needs stays in the store
    meanwhile.

    Args:
        put: puts a vector into the store and returns a reference to it.
        most_bytes: of the vectors to whom references are kept, but for the latest one.
        inline_bytes: size of a vector up to which it is not put, but travels with every call.
    """

    def __init__(
        self, put: Callable[[Vector], Any], most_bytes: int, inline_bytes: int = 0
    ) -> None:
        self._put = put
        self._inline_bytes = inline_bytes
        self._most_bytes = most_bytes
        self._num_bytes = 0
        # By the id of the vector; least recently used first.
        self._kept: OrderedDict[int, tuple[weakref.ref[Vector], Any, int]] = OrderedDict()

    def reference(self, vector: Vector) -> Any:
        """The reference to a vector, which is not changed afterwards; a small one itself."""
        if vector.nbytes <= self._inline_bytes:
            return vector
        key = id(vector)
        if key not in self._kept:
            reference = self._put(vector)
            # The id may belong to another vector as soon as this one is gone.
            weak = weakref.ref(vector, lambda _: self._forget(key))
            self._kept[key] = weak, reference, vector.nbytes
            self._num_bytes += vector.nbytes
            while self._num_bytes > self._most_bytes and len(self._kept) > 1:
                self._forget(next(iter(self._kept)))
        self._kept.move_to_end(key)
        return self._kept[key][1]

    def clear(self) -> None:
        """Free all."""
        self._kept.clear()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Of the vectors to whom references are kept."""
        return self._num_bytes

    def _forget(self, key: int) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            self._num_bytes -= entry[2]
