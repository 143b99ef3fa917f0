"""Compression of uploads: half precision, and top-k sparsification with error feedback.

Top-k with error feedback (Stich, Cordonnier, Jaggi: "Sparsified SGD with Memory", NeurIPS 2018,
arXiv:1809.07599; of clients' displacements or gradients u):

    p = u + e,    send C(p),    e <- p - C(p)

for the upload and for each of its extra vectors, where C keeps the k entries of largest magnitude,
in half precision if asked to, and e stays on the device. Half precision alone needs no feedback:
its error is a 2,048th of an entry.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.client.transform import Transformation
from fl_app.core.errors import require
from fl_app.core.layout import Layout
from fl_app.core.types import Order, Upload, Vector
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
