"""A set of client ids from which a few can be drawn at random without a scan."""

from collections.abc import Collection, Iterable, Iterator

import numpy as np


class ClientPool(Collection[int]):
    """Set of ids with O(1) add, remove and random draw.

    The iteration order follows from the calls made and from nothing else, so that equal runs draw
    equal clients.
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids = list(dict.fromkeys(ids))
        self._positions = {client_id: place for place, client_id in enumerate(self._ids)}

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._positions

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, client_id: int) -> None:
        """Add an id; adding it twice changes nothing."""
        if client_id not in self._positions:
            self._positions[client_id] = len(self._ids)
            self._ids.append(client_id)

    def discard(self, client_id: int) -> None:
        """Remove an id if it is there; the last one takes its place."""
        position = self._positions.pop(client_id, None)
        if position is not None:
            last = self._ids.pop()
            if last != client_id:
                self._ids[position] = last
                self._positions[last] = position

    def draw(
        self, count: int, rng: np.random.Generator, exclude: Collection[int] = ()
    ) -> list[int]:
        """Up to `count` distinct ids, uniformly at random, none of them in `exclude`."""
        if 2 * (count + len(exclude)) < len(self._ids):
            # Few of many: rejection sampling touches only what it draws.
            drawn: dict[int, None] = {}
            while len(drawn) < count:
                client_id = self._ids[rng.integers(len(self._ids))]
                if client_id not in exclude:
                    drawn[client_id] = None
            return list(drawn)
        candidates = [client_id for client_id in self._ids if client_id not in exclude]
        return [candidates[index] for index in rng.permutation(len(candidates))[:count]]
