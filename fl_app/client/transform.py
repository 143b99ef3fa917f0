"""What is done to orders and uploads outside a trainer: `order -> order` and `upload -> upload`.

    train = masked(compressed(private(trainer)))

A trainer knows nothing of it.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_app.core.layout import Layout
from fl_app.core.types import Order, Scores, State, Trainer, Upload, Vector
from fl_app.core.vector import all_finite

if TYPE_CHECKING:
    from fl_app.client.flat import FlatModel  # which loads torch

INDEX_BYTES = 4
RESIDUAL = "residual"  # key in the client state; for an extra vector "residual.<name>"
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


class Compressed(Transformation):
    """Compresses the trainable part of uploads. Buffers are few and are sent unchanged.

    Top-k with error feedback (Stich, Cordonnier, Jaggi: "Sparsified SGD with Memory", NeurIPS 2018,
    arXiv:1809.07599; of clients' displacements or gradients u):

        p = u + e,    send C(p),    e <- p - C(p)

    for the upload and for each of its extra vectors, where C keeps the k entries of largest
    magnitude, in half precision if asked to, and e stays on the device, in the client's state. Half
    precision alone needs no feedback: its error is a 2,048th of an entry.

    Args:
        layout: of the model.
        dtype: type of the entries that are sent, ``"float32"`` or ``"float16"``.
        top_k: share of the entries that is sent, in (0, 1]; None = all.

    Attributes:
        changes: whether an upload is changed at all.
        num_bytes: size of one vector of an upload; with top-k an upper bound, as zeros are not
            sent.
    """

    def __init__(self, layout: Layout, dtype: str = "float32", top_k: float | None = None) -> None:
        self._split = layout.num_trainable
        self._dtype = np.dtype(dtype)
        self._count: int | None = None  # k
        entries, entry = self._split, self._dtype.itemsize
        if top_k is not None:
            self._count = entries = max(1, round(top_k * self._split))
            entry += INDEX_BYTES
        self.changes = top_k is not None or self._dtype != np.float32
        self.num_bytes = entries * entry + 4 * (layout.size - self._split)

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
                residual = self.apply(vector, residuals.get(key))
                if residual is not None:
                    residuals[key] = residual
        return replace(upload, state={**upload.state, **residuals}) if residuals else upload

    def apply(self, vector: Vector, residual: NDArray[Any] | None) -> NDArray[Any] | None:
        """Compress an upload in place; it becomes the vector that the server receives.

        Args:
            vector: u and buffers, shape ``(d,)``.
            residual: e after the client's previous upload, shape ``(num_trainable,)``; None = 0.

        Returns:
            The residual to keep; None without top-k.
        """
        part = vector[: self._split]
        if not all_finite([part]):
            # The server rejects this upload. Rounding would make it finite, and its residual would
            # make all later uploads useless.
            return residual
        if self._count is None:
            part[:] = self._rounded(part)
            return None
        wanted = part.copy() if residual is None else part + residual
        places = np.argpartition(np.abs(wanted), part.size - self._count)[-self._count :]
        part[:] = 0
        part[places] = self._rounded(wanted[places])
        wanted -= part
        return wanted

    def _rounded(self, entries: Vector) -> NDArray[Any]:
        largest = np.finfo(self._dtype).max
        return np.clip(entries, -largest, largest).astype(self._dtype)


def _is_residual(key: str) -> bool:
    return key.partition(".")[0] == RESIDUAL
