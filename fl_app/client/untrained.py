"""Answers orders without training, for runs that only predict when things happen."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fl_app.core.errors import require
from fl_app.core.types import NO_EXTRA, Order, Scores, Upload
from fl_app.core.vector import read_only

if TYPE_CHECKING:
    from fl_app.client.trainer import LocalTrainer

LOSS = 0.0  # of a client that did not train; others would be refused as not finite


class Untrained:
    """Carries out every order by returning the model that it received.

    Uploads have the kind and the number of examples of those that `trainer` would send. So an
    algorithm whose schedule follows from neither losses nor vectors gives the events of a run with
    training: the same clients at the same times, with the same ages.

    Args:
        trainer: of the run.
        upload_extra: names of the vectors that travel beside an upload; they are 0.

    Raises:
        ValueError: clients pause, or train while models travel.
    """

    def __init__(self, trainer: "LocalTrainer", upload_extra: Sequence[str] = ()) -> None:
        fits = not (trainer.pauses or trainer.overlaps)
        bound = f"true with {type(trainer).__name__}"
        effect = "what clients send, and when, depends on their training"
        require(fits, "runtime.train", "false", bound, effect)
        self._trainer = trainer
        self._upload_extra = upload_extra
        self._nothing = read_only(np.zeros(trainer.model.layout.size, np.float32))

    def train(self, order: Order) -> Upload:
        """The upload of a client that has moved nowhere.

        Args:
            order: the order.

        Raises:
            ValueError: the client has no training examples.
        """
        count = int(self._trainer.task.train_indices(order.client_id).size)
        if count == 0:
            raise ValueError(f"client {order.client_id} has no training examples")
        kind = self._trainer.upload
        vector = order.vector if kind == "model" else self._nothing
        extra = {name: self._nothing for name in self._upload_extra} or NO_EXTRA
        return Upload(vector, kind, count, LOSS, state=order.state, extra=extra)

    def score(self, order: Order) -> Scores:
        """Refuse to evaluate, because nothing was trained."""
        raise ValueError(f"client {order.client_id} was to evaluate, and runtime.train=false")
