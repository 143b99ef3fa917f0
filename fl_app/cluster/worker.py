"""A worker: it builds its trainer once, and carries out orders."""

import faulthandler
import pickle
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fl_app.core.types import Reply, Trainer, Vector
from fl_app.engine.workers import Inline
from fl_app.record.provenance import processor

if TYPE_CHECKING:
    from fl_app.client.build import Recipe

COMPARED = ("numpy", "torch")  # Ray itself compares the versions of Python and of Ray


class OtherVersions(Exception):
    """A machine has other versions of packages; the text names both sides."""


@dataclass(frozen=True)
class Place:
    """Where a process runs.

    Attributes:
        machine: host name.
        processor: model, as Linux names it. Others may round differently.
    """

    machine: str
    processor: str


class NotReady(Exception):
    """The process was started again, and has no trainer yet."""


class ClusterWorker:
    """One long-lived process, as an actor of Ray. Its methods are called one after the other.

    Ray starts it again when it is lost, perhaps on another machine. Then it must be made `ready`
    again.

    Args:
        patience: seconds that one order may take. Then the process ends.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._inline: Inline | None = None

    def place(self) -> Place:
        """Where it runs. The answer does not wait for torch, whose import takes seconds."""
        return Place(platform.node(), processor())

    def ready(self, versions: Mapping[str, str], recipe: Sequence[Any]) -> Place:
        """Build the trainer.

        Args:
            versions: that this machine must have, as of `package_versions`.
            recipe: a list with the reference to a `Recipe`, so that Ray does not fetch it before
                the versions are compared.

        Raises:
            OtherVersions: results would differ here, or objects not be understood.
        """
        here = package_versions()
        if differing := [name for name in here if here[name] != versions[name]]:
            told = ", ".join(f"{name} {here[name]}, not {versions[name]}" for name in differing)
            raise OtherVersions(
                f"{platform.node()} has {told}: results would differ, or objects not be "
                "understood; install the same there, or run on machines that have it"
            )
        self._inline = Inline(_build(recipe[0]))
        return self.place()

    def work(self, packed: bytes, *vectors: Vector) -> tuple[list[Reply], float]:
        """Carry out orders one after the other.

        Args:
            packed: the orders (`fl_app.engine.worker.pack`).
            vectors: that are beside them, of the store.

        Returns:
            The replies, and the seconds that all of them took.

        Raises:
            NotReady: there is no trainer.
        """
        if self._inline is None:
            raise NotReady
        began = time.perf_counter()
        replies: list[Reply] = []
        for order in pickle.loads(packed, buffers=vectors):
            for vector in (order.vector, *order.extra.values()):  # other orders may have them, too
                vector.flags.writeable = False
            faulthandler.dump_traceback_later(self._patience, exit=True, file=2)
            self._inline.push(order)
            replies.extend(self._inline.pull(None))
            faulthandler.cancel_dump_traceback_later()
        return replies, time.perf_counter() - began


def _build(reference: Any) -> Trainer:
    import ray

    from fl_app.client.gpus import chosen

    recipe: Recipe = ray.get(reference)
    return recipe(chosen(str(recipe.config.runtime.device)))  # Ray shows a worker its own GPUs


def package_versions() -> dict[str, str]:
    """Versions by the names of `COMPARED`, without the build such as ``+cpu``; "none" = absent."""
    found = {}
    for name in COMPARED:
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found
