"""Bounds of the hyper-parameters of local training; checking them needs no torch."""

from collections.abc import Sequence

from fl_app.client.compression import Compression
from fl_app.core.errors import (
    require,
    require_at_least,
    require_count,
    require_patterns,
    require_positive,
)
from fl_app.core.types import KINDS

# Forms of the convolutions of clients that are trained in one operation.
GROUPED, UNFOLD = "grouped", "unfold"
CONVOLUTIONS = (GROUPED, UNFOLD)
# In which a model's products are computed while it trains (`fl_app.client.processor`).
FLOAT32, BFLOAT16 = "float32", "bfloat16"
PRECISIONS = (FLOAT32, BFLOAT16)


def check_training(
    *,
    upload: str,
    local_lr: float,
    batch_size: int,
    local_epochs: int,
    local_steps: int | None,
    momentum: float,
    weight_decay: float,
    proximal: float,
    lr_decay: float,
    max_grad_norm: float | None,
    upload_dtype: str,
    top_k: float | None,
    private: Sequence[str] | None = None,
) -> Compression:
    """Refuse values with which `fl_app.client.LocalTrainer` could not train; they are its own.

    Returns:
        How uploads travel.

    Raises:
        ValueError: naming key, value, bound and consequence.
    """
    require(
        upload in KINDS, "algorithm.client.upload", upload, f"one of {', '.join(KINDS)}", "unknown"
    )
    require_positive("algorithm.client.local_lr", local_lr, "training would not move")
    require_count("algorithm.client.batch_size", batch_size, "a batch would be empty")
    require_count("algorithm.client.local_epochs", local_epochs, "nothing would be trained")
    if local_steps is not None:
        require_count("algorithm.client.local_steps", local_steps, "nothing would be trained")
    require_at_least("algorithm.client.momentum", momentum, 0, "steps would oscillate")
    require(
        momentum < 1, "algorithm.client.momentum", momentum, "below 1", "steps would grow for ever"
    )
    require_at_least(
        "algorithm.client.weight_decay", weight_decay, 0, "weights would grow for ever"
    )
    require_at_least(
        "algorithm.client.proximal", proximal, 0, "training would flee the received model"
    )
    require(
        0 < lr_decay <= 1, "algorithm.client.lr_decay", lr_decay, "in (0, 1]", "rates would grow"
    )
    if max_grad_norm is not None:
        require_positive(
            "algorithm.client.max_grad_norm", max_grad_norm, "nothing would be trained"
        )
    if private is not None:
        require_patterns("algorithm.client.private", private, "nothing would be private")
        require(
            upload != "gradient",
            "algorithm.client.upload",
            upload,
            "model, delta or pseudo with algorithm.client.private",
            "clients take no steps, so private parameters would never be trained",
        )
    return Compression(dtype=upload_dtype, top_k=top_k, kind=upload)
