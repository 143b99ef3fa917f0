"""Transformations of orders and uploads outside a trainer.

    train = masked(compressed(private(trainer)))

A trainer does not know its transformations.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fl_app.core.layout import Layout
from fl_app.core.types import Order, Scores, State, Trainer, Upload, Vector
from fl_app.core.vector import all_finite
from fl_app.core.width import part_of

if TYPE_CHECKING:
    from fl_app.client.flat import FlatModel  # which loads torch
    from fl_app.client.trainer import LocalTrainer

DTYPES = ("float32", "float16")
PRIVATE = "private."  # prefix of a name in the client state


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


# -- private parameters ----------------------------------------------------------------------------


class Private(Transformation):
    """Keeps a model's private parameters in the client's state.

    Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers", 2019,
    arXiv:1912.00818. A client's model consists of shared parameters w and private ones p_i. Local
    training moves both,

        (w, p_i) <- (w, p_i) - lr grad f_i(w, p_i),

    and only w is sent, aggregated and tested on the server. p_i starts from the model's initial
    values and lasts from order to order.

    Args:
        model: of the trainer.
    """

    def __init__(self, model: "FlatModel") -> None:
        self._model = model

    def receive(self, order: Order) -> Order:
        self._model.load_private(below(PRIVATE, order.state))
        state = {name: array for name, array in order.state.items() if not name.startswith(PRIVATE)}
        return replace(order, state=state)

    def send(self, order: Order, upload: Upload) -> Upload:
        private = {PRIVATE + name: array for name, array in self._model.read_private().items()}
        return replace(upload, state={**upload.state, **private})


def below(prefix: str, state: State) -> State:
    """The arrays of a client's state whose names begin with a prefix, under the remaining name."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


# -- sub-models ------------------------------------------------------------------------------------


class Narrow(Transformation):
    """Trains the part of the model that an order's ``width`` names (`fl_app.core.width`).

    An upload says that nothing else has moved.

    Args:
        trainer: does the training.
    """

    def __init__(self, trainer: "LocalTrainer") -> None:
        self._trainer, self._whole = trainer, trainer.model
        self._models = {s: self._whole.narrowed(s) for s in set(trainer.widths or ()) if s < 1}

    def receive(self, order: Order) -> Order:
        self._trainer.model = self._models.get(float(order.config.get("width", 1)), self._whole)
        part = part_of(order.config, self._whole.layout)
        return order if part is None else replace(order, vector=order.vector[part])

    def send(self, order: Order, upload: Upload) -> Upload:
        part, self._trainer.model = part_of(order.config, self._whole.layout), self._whole
        if part is None:
            return upload
        vector = order.vector.copy() if upload.kind == "model" else np.zeros_like(order.vector)
        vector[part] = upload.vector
        return replace(upload, vector=vector)


# -- compression -----------------------------------------------------------------------------------


class Compressed(Transformation):
    """Rounds the trainable part of uploads. Buffers are few and are sent unchanged.

    In half precision an entry has a relative error of at most 1 / 2048 if it is larger than 6.1e-5,
    else an error of at most 3e-8; numbers beyond the range become its bounds.

    Args:
        layout: of the model.
        dtype: type of the entries that are sent, ``"float32"`` or ``"float16"``.

    Attributes:
        changes: whether an upload is changed at all.
        num_bytes: size of one vector of an upload.
    """

    def __init__(self, layout: Layout, dtype: str = "float32") -> None:
        self._split = layout.num_trainable
        self._dtype = np.dtype(dtype)
        self.changes = self._dtype != np.float32
        self.num_bytes = self._split * self._dtype.itemsize + 4 * (layout.size - self._split)

    def send(self, order: Order, upload: Upload) -> Upload:
        # Copies, because the client may keep the same vectors, uncompressed.
        extra = {name: vector.copy() for name, vector in upload.extra.items()}
        for vector in (upload.vector, *extra.values()):
            self.apply(vector)
        return replace(upload, extra=extra)

    def apply(self, vector: Vector) -> None:
        """Round a vector ``(d,)`` in place; it becomes the one that the server receives."""
        part = vector[: self._split]
        # The server rejects an upload that is not finite. Rounding would make it finite.
        if all_finite([part]):
            largest = np.finfo(self._dtype).max
            part[:] = np.clip(part, -largest, largest).astype(self._dtype)
