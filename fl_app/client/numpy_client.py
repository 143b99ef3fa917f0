"""A trainer as a Flower NumPyClient, for ClientApps that call one.

This project's own ClientApp gives orders to `TrainerClient.sender` instead
(`fl_app.flower.codec`), as a ClientApp must whose algorithm pauses or sends vectors beside the
model.
"""

import math
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.common import Scalar
from numpy.typing import NDArray

from fl_app.client.compression import Compression
from fl_app.client.flat import FlatModel
from fl_app.client.task import TrainingTask
from fl_app.client.transform import Trainer
from fl_app.core.types import Extra, Order, Vector

NOTHING: Vector = np.empty(0, np.float32)


class TrainerClient(NumPyClient):
    """Translates between Flower's arrays and orders and uploads.

    Attributes:
        task: data, model and loss of every client.
        model: the model in training, with its layout.
        compression: what is done to uploads (`fl_app.client.compression`).
        sender: carries out orders.
        state: arrays by name that this client keeps between its orders.
        extra: extra vectors by name, shape ``(d,)``.
        lineage: names of its class and of the bases below `fl_app.client.LocalTrainer`.
    """

    task: TrainingTask
    model: FlatModel
    compression: Compression
    sender: Trainer
    state: dict[str, NDArray[Any]]
    extra: Extra
    lineage: list[str]

    def get_parameters(self, config: dict[str, Scalar]) -> list[NDArray[Any]]:
        """The model's arrays in the layout's order; before training, its initial arrays."""
        del config
        return self.model.layout.unflatten(self.model.read())

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Scalar]]:
        """Carry out the order ``config["sequence"]`` of client ``config["client-id"]``.

        Before the call, `state` is the client's state from its previous order; after it, the new
        one.

        Returns:
            The upload as arrays in the layout's order, the number of examples, and metrics
            ``loss``, ``rate-sum`` and ``kind``.
        """
        upload = self.sender.train(self._order(parameters, config))
        self.state = dict(upload.state)
        told: dict[str, Scalar] = {"loss": upload.loss, "rate-sum": upload.rate_sum}
        arrays = self.model.layout.unflatten(upload.vector)
        return arrays, upload.num_examples, {**upload.metrics, **told, "kind": upload.kind}

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Loss, number of examples and metrics of a model on the client's validation examples.

        See `TrainingTask.evaluate`; the loss is NaN if there are no examples.
        """
        scores = self.sender.score(self._order(parameters, config))
        metrics: dict[str, Scalar] = {**scores.metrics}
        return float(metrics.pop("loss", math.nan)), scores.num_examples, metrics

    def _order(self, parameters: list[NDArray[Any]], config: dict[str, Scalar]) -> Order:
        vector: Vector = self.model.layout.flatten(parameters)
        return Order(
            number=0,  # unknown here, like `sent_at`; only the server uses them
            client_id=int(config.get("client-id", 0)),
            sequence=int(config.get("sequence", 0)),
            base_version=int(config.get("version", 0)),
            vector=vector,
            config={k: v for k, v in config.items() if not isinstance(v, bytes)},
            sent_at=0.0,
            state=self.state,
        )
