"""Compression of uploads: half precision, and top-k sparsification with error feedback.

Top-k with error feedback (Stich, Cordonnier, Jaggi: "Sparsified SGD with Memory", NeurIPS 2018,
arXiv:1809.07599; of clients' displacements or gradients u):

    p = u + e,    send C(p),    e <- p - C(p)

for the upload and for each of its extra vectors, where C keeps the k entries of largest magnitude,
in half precision if asked to, and e stays on the device. Half precision alone needs no feedback:
its error is a 2,048th of an entry.
"""

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require
from fl_app.core.layout import Layout
from fl_app.core.types import Order, Scores, Upload, Vector
from fl_app.core.vector import all_finite

INDEX_BYTES = 4
RESIDUAL = "residual"  # key in the client state; for an extra vector "residual.<name>"
DTYPES = ("float32", "float16")


class Compression:
    """Compresses the trainable part of uploads. Buffers are few and are sent unchanged.

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


class Trainer(Protocol):
    """Makes uploads (`fl_app.client.LocalTrainer`)."""

    def train(self, order: Order) -> Upload: ...
    def score(self, order: Order) -> Scores: ...


class Compressed:
    """A trainer with compression applied to its uploads; its training is unchanged.

    Args:
        trainer: does the training.
        compression: applied to its uploads.
        layout: layout of its model.
    """

    def __init__(self, trainer: Trainer, compression: Compression, layout: Layout) -> None:
        self._trainer = trainer
        self._compression = compression
        self._layout = layout

    def train(self, order: Order) -> Upload:
        """See `fl_app.client.LocalTrainer.train`; the state also holds the residuals."""
        residuals: dict[str, NDArray[Any]] = {}
        own: dict[str, NDArray[Any]] = {}
        for key, value in order.state.items():
            (residuals if key.partition(".")[0] == RESIDUAL else own)[key] = value
        upload = self._trainer.train(replace(order, state=own))
        if upload.done:
            # Copies, because the client may keep the same vectors, uncompressed.
            extra = {name: vector.copy() for name, vector in upload.extra.items()}
            upload = replace(upload, extra=extra)
            named = {f"{RESIDUAL}.{name}": vector for name, vector in extra.items()}
            for key, vector in {RESIDUAL: upload.vector, **named}.items():
                residual = self._compression.apply(vector, self._layout, residuals.get(key))
                if residual is not None:
                    residuals[key] = residual
        if not residuals:
            return upload
        return replace(upload, state={**upload.state, **residuals})

    def score(self, order: Order) -> Scores:
        """See `fl_app.client.LocalTrainer.score`; models are not compressed."""
        own = {k: v for k, v in order.state.items() if k.partition(".")[0] != RESIDUAL}
        return self._trainer.score(replace(order, state=own))
