"""Weights of updates that follow from public numbers alone, and from no upload's content."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_app.core import staleness
from fl_app.core.hyper import NON_NEGATIVE, SHARE, SWITCH, Checked, bounded, one_of
from fl_app.core.types import GlobalModel, Numbers, Updates


def by_examples(updates: Updates) -> Numbers:
    """n_i / n of K updates, shape ``(K,)``."""
    weights = np.array([update.num_examples for update in updates], np.float64)
    return weights / weights.sum()


FUNCTIONS = ("constant", "polynomial", "hinge", "exponential")


@dataclass(frozen=True)
class Weighting(Checked):
    """How an algorithm weighs K updates, up to a common factor.

    Server and helper of a secure aggregation both compute it (`fl_app.secure`).

    Args:
        function: s of the age (`fl_app.core.staleness`): ``"constant"``, ``"polynomial"``,
            ``"hinge"`` or ``"exponential"``.
        exponent: of the polynomial, >= 0.
        slope: of the hinge, >= 0.
        hinge_age: of the hinge, versions, >= 0.
        by_examples: whether the number of examples is a factor.
        mixing: alpha in (0, 1] of models that are mixed in one after the other,
            ``w <- (1 - alpha s) w + alpha s w_i``; None = they are added.
        capped: whether rounding must let no update count more than the heaviest one does exactly.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "weighting"

    function: str = bounded("constant", one_of(*FUNCTIONS), "no other function is known")
    exponent: float = bounded(0.0, NON_NEGATIVE, "older updates would weigh more")
    slope: float = bounded(0.0, NON_NEGATIVE, "older updates would weigh more")
    hinge_age: float = bounded(0.0, NON_NEGATIVE, "older updates would weigh more")
    by_examples: bool = bounded(False, SWITCH, "it is a switch")
    mixing: float | None = bounded(None, SHARE, "it is a mixing weight")
    capped: bool = bounded(False, SWITCH, "it is a switch")

    def weights(self, ages: Sequence[int], examples: Sequence[int]) -> Numbers:
        """Weights of K >= 1 updates, up to a common factor, shape ``(K,)``, each > 0.

        Args:
            ages: versions published since each client's base version, >= 0; oldest arrival first.
            examples: n_i >= 1.
        """
        if self.function == "exponential":
            weights = staleness.freshness(ages)
        else:
            weights = np.array([self.of_age(age) for age in ages], np.float64)
        if self.by_examples:
            weights = weights * np.asarray(examples, np.float64)
        if self.mixing is not None:
            shares = self.mixing * weights
            # What is mixed in later shrinks what was mixed in before.
            factors = [math.prod(1 - shares[i + 1 :]) for i in range(len(shares))]
            weights = shares * np.array(factors)
        # A weight that underflows becomes the smallest positive number.
        return np.maximum(weights, np.finfo(np.float64).tiny)

    def of(self, model: GlobalModel, updates: Updates) -> Numbers:
        """`weights` of K updates at w_t."""
        examples = [update.num_examples for update in updates]
        return self.weights([model.age(update) for update in updates], examples)

    def of_age(self, age: int) -> float:
        """s of an update alone; `weights` has the exponential, which is relative to others."""
        if self.function == "polynomial":
            return staleness.polynomial(age, self.exponent)
        if self.function == "hinge":
            return staleness.hinge(age, self.slope, self.hinge_age)
        return 1.0
