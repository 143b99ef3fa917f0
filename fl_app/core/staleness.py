"""Staleness functions s(age): how much an update counts that is `age` versions old.

All take the 0-based age (server version now minus version the client started from), give 1 at age 0
and never grow.
"""

import math
from collections.abc import Sequence

import numpy as np

from fl_app.core.types import GlobalModel, Numbers, Updates


def polynomial(age: int, exponent: float) -> float:
    """s = (age + 1)^(-exponent), Xie et al. 2019 (FedAsync) section 5.2."""
    return float((age + 1.0) ** -exponent)


def polynomials(model: GlobalModel, updates: Updates, exponent: float) -> Numbers:
    """`polynomial` of the ages of K updates, shape ``(K,)``."""
    return np.array([polynomial(model.age(update), exponent) for update in updates])


def hinge(age: int, slope: float, hinge_age: float) -> float:
    """s = 1 if age <= hinge_age, else 1 / (slope (age - hinge_age) + 1), Xie et al. 2019."""
    return 1.0 if age <= hinge_age else 1.0 / (slope * (age - hinge_age) + 1.0)


LN_HALF_E = 1.0 - math.log(2.0)  # ln(e/2)


def exponential(staleness: float) -> float:
    """s = (e/2)^(-staleness), Chen et al. 2019 (TWAFL); falls by half every 2.26 versions."""
    return math.exp(-LN_HALF_E * staleness)


def freshness(ages: Sequence[int]) -> Numbers:
    """(e/2)^(-age) of K updates, normalised to sum 1.

    Counted from the youngest, which cancels in the quotient: hundreds of versions would otherwise
    leave nothing that a float can hold.

    Args:
        ages: K >= 1 ages, from 0 or from 1.

    Returns:
        Shape ``(K,)``.
    """
    youngest = min(ages)
    weights = np.array([exponential(age - youngest) for age in ages])
    return weights / weights.sum()
