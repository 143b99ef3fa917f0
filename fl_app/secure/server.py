"""The server's half: what the engine aggregates where uploads are masked."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np

from fl_app.core.errors import RunError
from fl_app.core.types import GlobalModel, Update, Updates
from fl_app.core.weighting import Weighting
from fl_app.engine.guard import Intake, Opened
from fl_app.secure.integers import FixedPoint, integer_weights, rounding
from fl_app.secure.request import Member, Refused, Request, Summer, Terms
from fl_app.secure.seals import SEAL_BYTES


@dataclass(frozen=True)
class OpenedSum(Opened):
    """Updates whose vectors are all the weighted mean of the uploads.

    Attributes:
        shares: share of each update in that mean, its integer weight over the divisor.
        report: numbers for the aggregation's event.
    """

    shares: Sequence[float] = ()
    report: Mapping[str, float] = field(default_factory=dict)


@dataclass
class SecureAggregation(Intake):
    """Opens sums of masked uploads.

    An algorithm whose weights p_i depend on no upload computes sum_i p_i u_i. It gets K updates
    that all hold the mean m = sum_i a_i u_i / sum_i a_i, with integers a_i nearly proportional to
    p_i. So its own equation gives (sum_i p_i) m, which is that sum.

    Args:
        helper: gives sums of masks.
        terms: of the run.
        weighting: of the algorithm.
        members: K, updates of an aggregation.
    """

    replaces = True  # a sum must be over different devices

    helper: Summer
    terms: Terms
    weighting: Weighting
    _: KW_ONLY
    members: int

    def __post_init__(self) -> None:
        self._point = FixedPoint(self.terms.clip_norm, self.terms.scale, self.terms.size)

    def refuse(self, model: GlobalModel, update: Update) -> str:
        # Masked integers are finite, and a client masks no upload that is not.
        if len(update.seal) != SEAL_BYTES:
            return "the upload is not masked, and secure_aggregation=helper takes no other"
        if update.kind != self.terms.kind:
            return f"kind {update.kind!r} must be {self.terms.kind!r}, as for all of a sum"
        return ""

    def open(self, model: GlobalModel, updates: Updates) -> OpenedSum:
        """The updates, each with the mean of all uploads in place of its own.

        Args:
            model: w_t.
            updates: masked, oldest arrival first.

        Raises:
            RunError: the helper refuses the aggregation as a whole, or cannot be reached.
        """
        if len(updates) != self.members:
            raise RunError(
                f"an aggregation of {len(updates)} updates must have algorithm.schedule."
                f"buffer_size={self.members}: fewer show more of each, and more could overflow"
            )
        request = Request(
            self.terms,
            model.version,
            self.weighting,
            [Member.of(update) for update in updates],
        )
        try:
            masks = self.helper(request)
        except Refused as error:
            if error.members:
                return OpenedSum(faults=error.members)
            raise RunError(f"the helper refuses an aggregation: {error}") from error
        exact = request.exact_weights()
        weights = integer_weights(exact)
        total = np.zeros(self.terms.size, np.uint32)
        for update, weight in zip(updates, weights, strict=True):
            total += update.vector.view(np.uint32) * np.uint32(weight)
        total -= masks
        # The mean's divisor; larger if rounding would give an update more than its capped weight.
        divisor = float(sum(weights))
        if self.weighting.capped:
            divisor = max(divisor, float(exact.sum() / exact.max() * max(weights)))
        mean = self._point.mean(total, divisor)
        mean.flags.writeable = False
        report = {
            "weight_rounding": rounding(exact, weights),
            "quantisation_error": 1.0 / self.terms.scale,
        }
        return OpenedSum(
            updates=[replace(update, vector=mean, seal=b"") for update in updates],
            shares=[weight / divisor for weight in weights],
            report=report,
        )

    def complete(self, report: dict[str, Any], opened: Opened) -> None:
        # The weights become the shares of the uploads in their mean. The algorithm saw only the
        # mean, so the number that it computed from the norms of single uploads is removed.
        assert isinstance(opened, OpenedSum)
        report.pop("effective_clients", None)
        if "weight" in report:
            total = float(np.sum(report["weight"]))
            report["weight"] = [total * share for share in opened.shares]
        report.update(opened.report)
