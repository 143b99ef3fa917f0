"""What the mailbox needs of a cluster: machines with room for workers, calls, a store of objects.

`fl_app.cluster.connection` has Ray's. The words are Ray's, but for its nodes, which are machines
here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias


class Lost(Exception):
    """A worker is gone, or what it computed; the text says why. It can be computed elsewhere.

    Args:
        reason: why.
        alone: whether the worker died, and not its machine: its order may be the reason.
    """

    def __init__(self, reason: str, *, alone: bool = True) -> None:
        super().__init__(reason)
        self.alone = alone


@dataclass(frozen=True)
class Machine:
    """One that is connected.

    Attributes:
        name: address or host name, for messages.
        room: for how many workers it has processors and GPUs.
        store_bytes: size of its object store.
        has: what it offers, such as ``"2 CPUs, 0 GPUs"``, for messages.
    """

    name: str
    room: int
    store_bytes: int
    has: str


Outcome: TypeAlias = Any
"""What a call returned, or `Lost`, or another exception that it raised."""


class Cluster(Protocol):
    """Machines, and workers on them. Nothing here waits for a worker.

    Attributes:
        inline_bytes: size up to which an array is cheaper as an argument than in the store.
    """

    inline_bytes: int

    def machines(self) -> Mapping[str, Machine]:
        """Those that are connected now, by their ids."""
        ...

    def start(self, machine: str, *, strictly: bool) -> Any:
        """A handle of a new worker, which comes up when there is room.

        Args:
            machine: where it comes up.
            strictly: whether it waits for room there, even if another machine has room.
        """
        ...

    def call(
        self, worker: Any, method: str, *arguments: Any, then: Callable[[Outcome], None]
    ) -> None:
        """Call a method of a worker (`fl_app.cluster.worker.ClusterWorker`).

        Args:
            worker: a result of `start`. Its calls are carried out one after the other.
            method: name of the method.
            arguments: results of `put` are replaced by what was put, which is read-only.
            then: gets the outcome, in any thread.
        """
        ...

    def put(self, value: Any) -> Any:
        """Put an object into the store once; it is freed when nobody holds the result.

        Raises:
            RunError: it has no room there.
        """
        ...

    def kill(self, worker: Any) -> None:
        """End a worker at once."""
        ...

    def close(self) -> None:
        """End the connection, and the cluster itself if it was started for this run."""
        ...
