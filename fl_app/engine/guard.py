"""Decides which of the clients' uploads reach the strategy, and in which form.

A `Guard` refuses bad uploads with a reason, whatever the algorithm. The engine asks an `Intake`
whether an upload is accepted, which updates of the buffer may be aggregated now, and how the
strategy sees them. `fl_app.secure.server` derives one that opens sums of masked uploads.
"""

import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fl_app.core.errors import is_number
from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, Bound, Checked, bounded
from fl_app.core.snapshot import Remembers
from fl_app.core.types import RESIDUAL, GlobalModel, Update, Updates
from fl_app.core.vector import norm
from fl_app.engine.checks import overflow

WINDOW = 100  # lengths of which the median is taken
ABOVE_1 = Bound("a finite number above 1", lambda value: is_number(value) and value > 1)
MIN_LENGTHS = 10  # lengths needed before uploads are compared with their median


@dataclass(kw_only=True, eq=False)
class Guard(Remembers, Checked):
    """Bounds on uploads; None is no bound. That uploads are finite is checked in any case.

    The length of an upload is ||Delta_i||, or ||g_i|| if the run's clients send gradients, over the
    trainable part: a client does not choose which. The median is that of the last 100 finite
    uploads, also of those refused for their length. So fewer than half of the clients cannot move
    it, and it follows a common trend.

    Args:
        max_norm: longest upload, > 0.
        max_norm_ratio: largest ratio of an upload's length to the running median, > 1, from the
            eleventh upload on; also of each extra vector.
        max_age: greatest age of an upload, versions, >= 0.
        max_examples: most examples that a client may claim, >= 1; they may be its weight.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "guard"

    max_norm: float | None = bounded(None, POSITIVE, "every upload would be refused")
    max_norm_ratio: float | None = bounded(
        None,
        ABOVE_1,
        "half of all uploads are longer than the median and would be refused",
    )
    max_age: int | None = bounded(None, NON_NEGATIVE, "every upload would be refused")
    max_examples: int | None = bounded(None, COUNT, "every upload would be refused")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kind = ""  # of the uploads of the run; "" = each has its own
        self._lengths: dict[str, deque[float]] = {}  # by name of the vector, "" = the upload's own

    def validate_kinds(self, takes: Collection[str]) -> None:
        """Refuse bounds on the length of uploads that have no length.

        Args:
            takes: kinds of uploads that the strategy can use.

        Raises:
            ValueError: a norm is bounded, and uploads are of the kind "residual".
        """
        if RESIDUAL not in takes:
            return
        bound = f"null with uploads of kind {RESIDUAL!r}"
        reason = "their length is not that of a displacement, so every upload would be refused"
        for key in ("max_norm", "max_norm_ratio"):
            self._require(getattr(self, key) is None, key, bound, reason)

    def refuse(self, model: GlobalModel, update: Update) -> str:
        """The reason to refuse a finite upload; "" = it is accepted.

        Args:
            model: w_t and the versions that are cited.
            update: the upload.
        """
        age = model.age(update)
        if self.max_age is not None and age > self.max_age:
            return f"age={age} is above guard.max_age={self.max_age}"
        number = update.num_examples
        if self.max_examples is not None and number > self.max_examples:
            return f"num_examples={number} is above guard.max_examples={self.max_examples}"
        return self._too_long(model, update)

    def _too_long(self, model: GlobalModel, update: Update) -> str:
        if self.max_norm is None and self.max_norm_ratio is None:
            return ""
        gradients = (self.kind or update.kind) in ("gradient", "pseudo")
        vector = model.gradient(update) if gradients else model.delta(update)
        with np.errstate(over="ignore"):  # too long for its length to be a number is too long
            lengths = {
                name: norm(each[: model.num_trainable])
                for name, each in {"": vector, **update.extra}.items()
            }
        if self.max_norm is not None and lengths[""] > self.max_norm:
            return f"norm={lengths['']:.3g} is above guard.max_norm={self.max_norm:g}"
        if self.max_norm_ratio is None:
            return ""
        reasons = []
        for name, length in lengths.items():
            recent = self._lengths.setdefault(name, deque(maxlen=WINDOW))
            median = statistics.median(recent) if len(recent) >= MIN_LENGTHS else None
            recent.append(length)
            if median and length > self.max_norm_ratio * median:  # 0: most clients send none
                reasons.append(
                    f"norm={length:.3g}{name and f' of extra vector {name!r}'} is above "
                    f"guard.max_norm_ratio={self.max_norm_ratio:g} times the running median "
                    f"{median:.3g}"
                )
        return reasons[0] if reasons else ""


@dataclass(frozen=True)
class Opened:
    """The updates of one aggregation as the strategy sees them.

    Attributes:
        updates: one for each of those that were to be opened, in their order; empty if there are
            `faults`.
        faults: index -> why this update cannot be opened. The engine drops these and aggregates
            nothing.
    """

    updates: Updates = ()
    faults: Mapping[int, str] = field(default_factory=dict)


class Intake:
    """Accepts every upload whose numbers are finite; the strategy sees updates unchanged.

    Attributes:
        replaces: whether a client's new upload takes the place of one that still waits.
    """

    replaces: ClassVar[bool] = False

    def refuse(self, model: GlobalModel, update: Update) -> str:
        """The reason to refuse a well-formed upload; "" = it is accepted.

        Args:
            model: w_t and the versions that are cited.
            update: the upload.
        """
        if update.seal:
            return "the upload is masked, and nobody could open it"
        return overflow(model, update)

    def open(self, model: GlobalModel, updates: Updates) -> Opened:
        """These updates as the strategy sees them.

        Args:
            model: w_t.
            updates: that the schedule took, oldest arrival first.

        Raises:
            RunError: they cannot be opened, and no single one of them is at fault.
        """
        return Opened(updates)

    def complete(self, report: dict[str, Any], opened: Opened) -> None:
        """Complete the strategy's report of an aggregation, in place."""
