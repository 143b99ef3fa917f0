"""What is done to orders and uploads outside a trainer: `order -> order` and `upload -> upload`.

    train = masked(compressed(private(trainer)))

A trainer knows nothing of it.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require
from fl_app.core.layout import Layout
from fl_app.core.types import Order, Scores, State, Upload, Vector
from fl_app.core.vector import all_finite

if TYPE_CHECKING:
    from fl_app.client.flat import FlatModel  # which loads torch

INDEX_BYTES = 4
RESIDUAL = "residual"  # key in the client state; for an extra vector "residual.<name>"
DTYPES = ("float32", "float16")
PRIVATE = "private."  # prefix of a name in the client state


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
        self._model.load_private(private_of(order.state))
        own = {name: array for name, array in order.state.items() if not name.startswith(PRIVATE)}
        return replace(order, state=own)

    def send(self, order: Order, upload: Upload) -> Upload:
        kept = {PRIVATE + name: array for name, array in self._model.read_private().items()}
        return replace(upload, state={**upload.state, **kept})


def private_of(state: State) -> State:
    """The private parameters in a client's state, by their own names."""
    return {k.removeprefix(PRIVATE): v for k, v in state.items() if k.startswith(PRIVATE)}


# -- compression -----------------------------------------------------------------------------------


class Compression:
    """Compresses the trainable part of uploads. Buffers are few and are sent unchanged.

    Top-k with error feedback (Stich, Cordonnier, Jaggi: "Sparsified SGD with Memory", NeurIPS 2018,
    arXiv:1809.07599; of clients' displacements or gradients u):

        p = u + e,    send C(p),    e <- p - C(p)

    for the upload and for each of its extra vectors, where C keeps the k entries of largest
    magnitude, in half precision if asked to, and e stays on the device. Half precision alone needs
    no feedback: its error is a 2,048th of an entry.

    Args:
        dtype: type of the entries that are sent, ``"float32"`` or ``"float16"``.
        top_k: share of the entries that is sent, in (0, 1]; None = all.
        kind: kind of the uploads; models are not sparse, so ``"model"`` needs `top_k` = None.

    Raises:
        ValueError: models are to be sparse.
    """

    def __init__(self, *, dtype: str, top_k: float | None, kind: str) -> None:
        require(
            top_k is None or kind != "model",
            "algorithm.client.top_k",
            top_k,
            "null with algorithm.client.upload=model",
            "most of a model's entries matter; displacements and gradients can be sparse",
        )
        self.dtype = np.dtype(dtype)
        self.top_k = top_k

    @property
    def changes(self) -> bool:
        """Whether an upload is changed at all."""
        return self.top_k is not None or self.dtype != np.float32

    def count(self, layout: Layout) -> int:
        """k, the number of trainable entries that are sent."""
        if self.top_k is None:
            return layout.num_trainable
        return max(1, round(self.top_k * layout.num_trainable))

    def num_bytes(self, layout: Layout) -> int:
        """Size of one vector of an upload; with top-k an upper bound, as zeros are not sent."""
        entry = self.dtype.itemsize + (0 if self.top_k is None else INDEX_BYTES)
        return self.count(layout) * entry + 4 * (layout.size - layout.num_trainable)

    def apply(
        self, vector: Vector, layout: Layout, residual: NDArray[Any] | None
    ) -> NDArray[Any] | None:
        """Compress an upload in place; it becomes the vector that the server receives.

        Args:
            vector: u and buffers, shape ``(d,)``.
            layout: layout of the model.
            residual: e after the client's previous upload, shape ``(num_trainable,)``; None = 0.

        Returns:
            The residual to keep; None without top-k.
        """
        part = vector[: layout.num_trainable]
        if not all_finite([part]):
            # The server rejects this upload. Rounding would make it finite, and its residual would
            # make all later uploads useless.
            return residual
        if self.top_k is None:
            part[:] = self._rounded(part)
            return None
        wanted = part.copy() if residual is None else part + residual
        count = self.count(layout)
        places = np.argpartition(np.abs(wanted), part.size - count)[part.size - count :]
        part[:] = 0
        part[places] = self._rounded(wanted[places])
        wanted -= part
        return wanted

    def _rounded(self, entries: Vector) -> NDArray[Any]:
        largest = np.finfo(self.dtype).max
        return np.clip(entries, -largest, largest).astype(self.dtype)


class Compressed(Transformation):
    """Compression of a trainer's uploads; the client's state also holds the residuals.

    Args:
        compression: applied to uploads.
        layout: of the model.
    """

    def __init__(self, compression: Compression, layout: Layout) -> None:
        self._compression = compression
        self._layout = layout

    def receive(self, order: Order) -> Order:
        own = {key: array for key, array in order.state.items() if not _is_residual(key)}
        return replace(order, state=own)

    def send(self, order: Order, upload: Upload) -> Upload:
        residuals = {key: array for key, array in order.state.items() if _is_residual(key)}
        if upload.done:
            # Copies, because the client may keep the same vectors, uncompressed.
            extra = {name: vector.copy() for name, vector in upload.extra.items()}
            upload = replace(upload, extra=extra)
            named = {f"{RESIDUAL}.{name}": vector for name, vector in extra.items()}
            for key, vector in {RESIDUAL: upload.vector, **named}.items():
                residual = self._compression.apply(vector, self._layout, residuals.get(key))
                if residual is not None:
                    residuals[key] = residual
        return replace(upload, state={**upload.state, **residuals}) if residuals else upload


def _is_residual(key: str) -> bool:
    return key.partition(".")[0] == RESIDUAL
