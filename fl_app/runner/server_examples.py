"""Gradients that a simulated server computes on examples of its own."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_app.core.types import Order, Vector

if TYPE_CHECKING:
    from fl_app.client import LocalTrainer


class ServerExamples:
    """A task of which the server is the only client, with examples drawn from those of all clients.

    Args:
        trainer: of the run's clients; its data, model and seed are taken, and its own state is left
            alone.
    """

    def __init__(self, trainer: "LocalTrainer") -> None:
        self._clients = trainer
        self._server: LocalTrainer | None = None
        self._held: NDArray[np.int64] = np.empty(0, np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clients.task, name)

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        """The server's examples."""
        del client_id
        return self._held

    def gradient(self, params: Vector, version: int, held_examples: int, batch_size: int) -> Vector:
        """The gradient at `params` of a mini-batch that follows from seed and version, ``(d,)``."""
        clients, server_id = self._clients, self._clients.task.num_clients
        if self._server is None:
            pool = np.concatenate([clients.task.train_indices(i) for i in range(server_id)])
            rng = np.random.default_rng((clients.seed, server_id))
            self._held = rng.choice(pool, min(held_examples, pool.size), replace=False)
            from fl_app.client.trainer import LocalTrainer  # torch

            self._server = LocalTrainer(
                self,
                upload="gradient",
                batch_size=batch_size,
                private=clients.private,
                seed=clients.seed,
                device=clients.device,
            )
        order = Order(0, server_id, version, version, params, {}, 0.0)
        return self._server.train(order).vector
