"""The client of a node: a Flower `NumPyClient` over a trainer's orders."""

import math
from typing import Any

from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from fl_app.client.build import chain
from fl_app.client.trainer import LocalTrainer
from fl_app.core.types import Order, State, Trainer


class TrainerClient(NumPyClient):
    """A trainer within its transformations.

    `train` and `score` take orders, as Flower's messages carry them (`fl_app.flower.codec`). `fit`
    and `evaluate` are the same for a ClientApp that calls a NumPyClient. They tag what they return
    with the version of the model that it was computed from.

    Args:
        trainer: does the training.
        carries_out: the trainer within its transformations; None = those of its settings.

    Attributes:
        trainer: as given.
        train: the upload of an order.
        score: what the client measures of an order's model.
        layout: of the whole model; an order may give the trainer a part of it.
        state: arrays by name that this client keeps between two calls of `fit`.
    """

    def __init__(self, trainer: LocalTrainer, carries_out: Trainer | None = None) -> None:
        transformed = chain(trainer) if carries_out is None else carries_out
        self.trainer, self.train, self.score = trainer, transformed.train, transformed.score
        self.layout = trainer.model.layout
        self.state: State = {}

    def get_parameters(self, config: dict[str, Scalar]) -> NDArrays:
        """The model's arrays in the layout's order; before training, its initial arrays."""
        return self.layout.unflatten(self.trainer.model.read())

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Carry out the order ``config["sequence"]`` of client ``config["client-id"]``.

        Returns:
            The upload as arrays in the layout's order, the number of examples, and metrics
            ``version`` (as in `config`), ``loss``, ``rate-sum`` and ``kind``.

        Raises:
            ValueError: the arrays are not those of the model.
        """
        order = self._order(parameters, config)
        upload = self.train(order)
        self.state = upload.state
        metrics: dict[str, Scalar] = {
            **upload.metrics,
            "version": order.base_version,
            "loss": upload.loss,
            "rate-sum": upload.rate_sum,
            "kind": upload.kind,
        }
        return self.layout.unflatten(upload.vector), upload.num_examples, metrics

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Loss, number of examples and metrics of a model on the client's validation examples.

        The loss is NaN if there are no examples.
        """
        order = self._order(parameters, config)
        scores = self.score(order)
        metrics: dict[str, Any] = {**scores.metrics, "version": order.base_version}
        return float(metrics.pop("loss", math.nan)), scores.num_examples, metrics

    def _order(self, parameters: NDArrays, config: dict[str, Scalar]) -> Order:
        return Order(
            number=0,  # unknown here, like `sent_at`; only the server uses them
            client_id=int(config.get("client-id", 0)),
            sequence=int(config.get("sequence", 0)),
            base_version=int(config.get("version", 0)),
            vector=self.layout.flatten(parameters),
            config={k: v for k, v in config.items() if not isinstance(v, bytes)},
            sent_at=0.0,
            state=self.state,
        )
