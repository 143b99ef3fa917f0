"""The versions of the model that are kept: the current one, and those that something cites."""

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fl_app.core.types import GlobalModel, Vector


class Versions:
    """The current version of the model, and the older ones that an order or an update cites.

    Args:
        initial: version 0, shape ``(d,)``.
        num_trainable: number of trainable entries, which come first in the vector.

    Attributes:
        number: of the current version.
    """

    def __init__(self, initial: Vector, num_trainable: int) -> None:
        self.number = 0
        self._num_trainable = num_trainable
        self._vectors: dict[int, Vector] = {0: initial}
        self._cited: Counter[int] = Counter()  # orders and buffered updates by base version

    @property
    def model(self) -> GlobalModel:
        """The current version as strategies see it."""
        return GlobalModel(
            params=self._vectors[self.number],
            version=self.number,
            history=MappingProxyType(self._vectors),
            num_trainable=self._num_trainable,
        )

    def publish(self, vector: Vector) -> None:
        """Make a vector the next version; Ctrl-C at any point leaves a current version."""
        self._vectors[self.number + 1] = vector
        self.number += 1
        self._forget(self.number - 1)

    def cite(self, version: int) -> None:
        """Keep a version for one more order or buffered update."""
        self._cited[version] += 1

    def release(self, version: int) -> None:
        """One order or buffered update fewer cites this version; drop it after the last one."""
        self._cited[version] -= 1
        self._forget(version)

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain data and arrays."""
        return {"version": self.number, "versions": self._vectors, "cited": self._cited}

    def load_state_dict(self, state: Mapping[str, Any], share: Callable[[Vector], Vector]) -> None:
        """Restore a state.

        Args:
            state: a result of `state_dict`; other keys are left alone.
            share: gives a vector the form in which clients can receive it.
        """
        self.number = state["version"]
        self._vectors = {version: share(vector) for version, vector in state["versions"].items()}
        self._cited = Counter(state["cited"])

    def _forget(self, version: int) -> None:
        if self._cited[version] == 0:
            del self._cited[version]
            if version != self.number:
                self._vectors.pop(version, None)
