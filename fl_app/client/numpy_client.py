"""A trainer as a Flower NumPyClient."""

import math
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.common import Scalar
from numpy.typing import NDArray

from fl_app.client.compression import Compression
from fl_app.client.flat import FlatModel
from fl_app.client.private import private_of
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

        Before the call, `state` is the client's state from its previous order, and `extra` holds
        the order's extra vectors. After it, `state` is the new state, and `extra` holds the
        upload's extra vectors.

        Returns:
            The upload as arrays in the layout's order (none after a pause), the number of examples,
            and metrics ``loss``, ``rate-sum`` and ``kind``. If they apply, there are also
            ``encoding`` (``"top-k"``: all but k trainable entries are 0; ``"masked"``: one array of
            integers, and the ``seal`` of its mask), ``done``, ``progress``, ``base-version``, and
            ``trainer``, the `lineage`.
        """
        received = self.model.layout.flatten(parameters) if parameters else NOTHING
        settings = {k: v for k, v in config.items() if not isinstance(v, bytes)}
        order = Order(
            number=0,  # unknown here, like `sent_at`; only the server uses them
            client_id=int(config.get("client-id", 0)),
            sequence=int(config.get("sequence", 0)),
            base_version=int(config.get("version", 0)),
            vector=received,
            config=settings,
            sent_at=0.0,
            state=self.state,
            extra=self.extra,
        )
        upload = self.sender.train(order)
        self.state, self.extra = dict(upload.state), upload.extra
        metrics: dict[str, Scalar] = {
            **upload.metrics,
            "loss": upload.loss,
            "rate-sum": upload.rate_sum,
            "kind": upload.kind,
        }
        if self.lineage:
            metrics["trainer"] = " ".join(self.lineage)
        if upload.base_version is not None:
            metrics["base-version"] = upload.base_version
        if not upload.done:
            metrics |= {"done": 0, "progress": upload.progress}
            return [], upload.num_examples, metrics
        if upload.seal:
            metrics |= {"encoding": "masked", "seal": upload.seal}
            return [upload.vector.view(np.uint32)], upload.num_examples, metrics
        if self.compression.top_k is not None:
            metrics["encoding"] = "top-k"
        arrays = self.model.layout.unflatten(upload.vector)
        with np.errstate(over="ignore"):  # diverged: inf, which the server refuses
            for place, entry in enumerate(self.model.layout.entries):
                if entry.trainable:  # `sender` has rounded them already
                    arrays[place] = arrays[place].astype(self.compression.dtype, copy=False)
        return arrays, upload.num_examples, metrics

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Loss, number of examples and metrics of a model on the client's validation examples.

        See `TrainingTask.evaluate`; the loss is NaN if there are no examples.
        """
        self.model.load(self.model.layout.flatten(parameters))
        self.model.load_private(private_of(self.state))
        client_id = int(config.get("client-id", 0))
        metrics, num_examples = self.task.evaluate(self.model.module, client_id)
        loss = metrics.get("loss", math.nan)
        return loss, num_examples, {k: v for k, v in metrics.items() if k != "loss"}
