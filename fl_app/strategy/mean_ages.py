"""The mean age of each client's updates, which says how rarely it takes part."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_app.core.types import GlobalModel, Update


def mean_ages(
    ages: dict[int, float], model: GlobalModel, updates: Sequence[Update], rate: float
) -> NDArray[np.float64]:
    """Take updates into the running means of their clients' ages.

        E_c = tau at a client's first update, then E_c <- (1 - rate) E_c + rate tau

    Args:
        ages: client -> E_c, in versions; is changed.
        model: that ages count up to.
        updates: K, in their order.
        rate: the share of an update in its client's mean, in (0, 1].

    Returns:
        E_c of the client of each update, once all are taken in; shape ``(K,)``.
    """
    for update in updates:
        age = float(model.age(update))
        before = ages.get(update.client_id, age)
        ages[update.client_id] = (1 - rate) * before + rate * age
    return np.array([ages[update.client_id] for update in updates])
