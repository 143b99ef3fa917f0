"""What is done to orders and uploads outside a trainer: `order -> order` and `upload -> upload`.

    train = masked(compressed(private(trainer)))

A trainer knows nothing of it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fl_app.core.types import Order, Scores, Upload

if TYPE_CHECKING:
    from fl_app.client.trainer import LocalTrainer


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


def chain(trainer: "LocalTrainer", *further: Transformation) -> Trainer:
    """A trainer within what its settings ask for, and within further transformations.

    Args:
        trainer: does the training.
        further: the innermost first.
    """
    from fl_app.client.compression import Compressed
    from fl_app.client.private import Private  # torch, which this module does not need

    compression, layout = trainer.compression, trainer.model.layout
    parts: list[Transformation] = [Private(trainer.model)] if trainer.private else []
    if compression.changes:
        parts.append(Compressed(compression, layout))
    whole: Trainer = trainer
    for transformation in (*parts, *further):
        whole = Transformed(whole, transformation)
    return whole
