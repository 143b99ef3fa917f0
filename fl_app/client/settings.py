"""How a client trains; torch is not needed to refuse a value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fl_app.client.transform import DTYPES
from fl_app.core.hyper import (
    BELOW_1,
    COUNT,
    NON_NEGATIVE,
    PATTERNS,
    POSITIVE,
    SHARE,
    SHARES,
    Checked,
    at_least,
    bounded,
    one_of,
)
from fl_app.core.types import KINDS, MIN_RATE, Config

RATE_SUM = at_least(MIN_RATE)  # of the learning rates of an order


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingSettings(Checked):
    """Settings of mini-batch SGD on one client.

    Attributes:
        upload: ``"gradient"`` (of one mini-batch, no step), ``"pseudo"`` ((w_o - w_end) / sum of
            rates), ``"delta"`` (w_end - w_o) or ``"model"`` (w_end).
        local_lr: eta_l > 0.
        batch_size: m >= 1; a client with fewer examples uses all of them.
        local_epochs: passes over the data, >= 1, unless `local_steps` is given.
        local_steps: number of mini-batches, >= 1.
        momentum: in [0, 1); the velocity is zero when an order starts.
        weight_decay: >= 0.
        proximal: mu >= 0, the pull towards the received model (FedProx).
        lr_decay: in (0, 1]; each version of the global model multiplies eta_l by it.
        max_grad_norm: largest norm of a batch's gradient with penalty and correction, > 0, to which
            it is scaled down; None = no bound.
        upload_dtype: type of an upload's entries, ``"float32"`` or ``"float16"``.
        private: patterns of the names of parameters and buffers that stay on the client; None =
            none. Penalty, correction and proximal term leave them out.
        widths: shares of every hidden layer's units, each in (0, 1], that as many clients train
            each (`fl_app.core.width`), the slowest the smallest; None = all train the whole model.
        width_window: which units these are, ``"first"`` (HeteroFL) or ``"rolling"`` (FedRolex).

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "algorithm.client"

    upload: str = bounded("model", one_of(*KINDS), "unknown")
    local_lr: float = bounded(0.05, POSITIVE, "training would not move")
    batch_size: int = bounded(32, COUNT, "a batch would be empty")
    local_epochs: int = bounded(1, COUNT, "nothing would be trained")
    local_steps: int | None = bounded(None, COUNT, "nothing would be trained")
    momentum: float = bounded(0.0, BELOW_1, "steps would oscillate or grow for ever")
    weight_decay: float = bounded(0.0, NON_NEGATIVE, "weights would grow for ever")
    proximal: float = bounded(0.0, NON_NEGATIVE, "training would flee the received model")
    lr_decay: float = bounded(1.0, SHARE, "rates would grow")
    max_grad_norm: float | None = bounded(None, POSITIVE, "nothing would be trained")
    upload_dtype: str = bounded("float32", one_of(*DTYPES), "the server could not read it")
    private: Sequence[str] | None = bounded(None, PATTERNS, "nothing would be private")
    widths: Sequence[float] | None = bounded(
        None, SHARES, "a client would train nothing, or more than there is"
    )
    width_window: str = bounded("first", one_of("first", "rolling"), "no other units are known")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.private is not None:
            bound = "model, delta or pseudo with algorithm.client.private"
            reason = "clients take no steps, so private parameters would never be trained"
            self._require(self.upload != "gradient", "upload", bound, reason)
        fits = self.widths is not None or self.width_window == "first"
        bound = "used with algorithm.client.widths"
        self._require(fits, "width_window", bound, "all clients would train the whole model")

    @property
    def epochs(self) -> int:
        """Number of equal parts of an order; a client can pause or stop after each part."""
        return 1 if self.local_steps or self.upload == "gradient" else self.local_epochs

    @property
    def work_per_update(self) -> str:
        """What a client does for one upload, in words."""
        if self.upload == "gradient":
            return "1 mini-batch"
        number, unit = (self.local_steps, "step") if self.local_steps else (self.epochs, "epoch")
        return f"{number} {unit}{'s' * (number > 1)}"

    def rate(self, config: Config) -> float:
        """The learning rate of an order."""
        lr: float = self.local_lr * self.lr_decay ** float(config.get("version", 0))
        return lr * float(config.get("local_lr_factor", 1.0))

    def lengths(self, num_examples: int, config: Config) -> tuple[int, int]:
        """Number of mini-batches of an epoch, and of an order."""
        per_epoch = math.ceil(num_examples / self.batch_size)
        steps = config.get("local_steps", self.local_steps)
        epochs = int(config.get("local_epochs", self.local_epochs))
        return per_epoch, int(steps) if steps else epochs * per_epoch
