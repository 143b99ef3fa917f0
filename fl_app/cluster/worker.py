"""A worker: it builds its trainer once, and carries out orders."""

import faulthandler
import pickle
import time
from typing import TYPE_CHECKING

from fl_app.core.types import Reply, Trainer, Vector
from fl_app.engine.worker import carry_out

if TYPE_CHECKING:
    from fl_app.client.build import Recipe


class NotReady(Exception):
    """The process was restarted, and has no trainer yet."""


class ClusterWorker:
    """One long-lived process, as an actor of Ray. Its methods are called one after the other.

    Ray restarts it when it is lost, perhaps on another machine. Then it must be made `ready` again.

    Args:
        patience: seconds that one order may take. Then the process ends.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._trainer: Trainer | None = None

    def ready(self, recipe: "Recipe") -> None:
        """Build the trainer."""
        from fl_app.client.gpus import resolve_device

        device = resolve_device(str(recipe.config.runtime.device))  # Ray shows a worker its GPUs
        self._trainer = recipe(device)

    def work(self, packed: bytes, *vectors: Vector) -> tuple[list[Reply], float]:
        """Carry out orders one after the other.

        Args:
            packed: the orders (`fl_app.engine.worker.pack`).
            vectors: of the orders, from the cluster's store.

        Returns:
            The replies, and the seconds that all of them took.

        Raises:
            NotReady: there is no trainer.
        """
        if self._trainer is None:
            raise NotReady
        began = time.perf_counter()
        replies: list[Reply] = []
        for order in pickle.loads(packed, buffers=vectors):
            for vector in (order.vector, *order.extra.values()):  # other orders may share them
                vector.flags.writeable = False
            faulthandler.dump_traceback_later(self._patience, exit=True, file=2)
            replies.extend(carry_out(self._trainer, [order]))
            faulthandler.cancel_dump_traceback_later()
        return replies, time.perf_counter() - began
