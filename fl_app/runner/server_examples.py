"""Gradients that a simulated server computes on examples of its own."""

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_app.core.types import Order, Vector

if TYPE_CHECKING:
    from fl_app.client import LocalTrainer


class ServerExamples:
    """A task of which the server is the only client, with examples drawn from those of all clients.

    Args:
        trainer: of the run's clients; its model, which every order loads anew, is used, too.
    """

    def __init__(self, trainer: "LocalTrainer") -> None:
        self._task, self._server = trainer.task, copy(trainer)
        self._server.task, self._server.upload = self, "gradient"
        self._held: NDArray[np.int64] = np.empty(0, np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        """The server's examples."""
        del client_id
        return self._held

    def gradient(self, params: Vector, version: int, held_examples: int, batch_size: int) -> Vector:
        """The gradient at `params` of a mini-batch that follows from seed and version, ``(d,)``."""
        server, server_id = self._server, self._task.num_clients
        if not self._held.size:
            pool = np.concatenate([self._task.train_indices(i) for i in range(server_id)])
            rng = np.random.default_rng((server.seed, server_id))
            self._held = rng.choice(pool, min(held_examples, pool.size), replace=False)
            server.batch_size = batch_size
        order = Order(0, server_id, version, version, params, {}, 0.0)
        return server.train(order).vector
