"""What is done to orders and uploads outside a trainer: `order -> order` and `upload -> upload`.

    train = masked(compressed(private(trainer)))

A trainer knows nothing of it.
"""

from dataclasses import dataclass
from typing import Protocol

from fl_app.core.types import Order, Scores, Upload


class Trainer(Protocol):
    """Carries out orders (`fl_app.client.LocalTrainer`)."""

    def train(self, order: Order) -> Upload:
        """The upload of an order to train."""
        ...

    def score(self, order: Order) -> Scores:
        """What the client measures of an order's model."""
        ...


class Transformation:
    """What a client does to its orders before the training, and to its uploads after it."""

    def receive(self, order: Order) -> Order:
        """The order as the trainer gets it."""
        return order

    def send(self, order: Order, upload: Upload) -> Upload:
        """The upload as it is sent.

        Args:
            order: as it came, before `receive`.
            upload: the trainer's.
        """
        del order
        return upload


@dataclass(frozen=True)
class Transformed:
    """A trainer within a transformation.

    Attributes:
        trainer: does the training.
        transformation: of its orders and uploads.
    """

    trainer: Trainer
    transformation: Transformation

    def train(self, order: Order) -> Upload:
        """Carry out an order."""
        upload = self.trainer.train(self.transformation.receive(order))
        return self.transformation.send(order, upload)

    def score(self, order: Order) -> Scores:
        """Measure a model; scores are sent as they are."""
        return self.trainer.score(self.transformation.receive(order))
