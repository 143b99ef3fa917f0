"""Choose the examples of a test set where the data have none of their own."""

import numpy as np
from numpy.typing import NDArray

STREAM = 0x7465_7374_2073_6574  # keeps these random numbers apart from all others


def held_out(groups: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Which examples are for testing, shape ``(n,)``; equal arguments give equal examples.

    The share holds in every group up to one example, and every group keeps one for training. The
    choice does not depend on a run's seed, so that all runs are tested on the same examples.

    Args:
        groups: class or owner of each example, shape ``(n,)``.
        share: of all examples, in [0, 1).
    """
    order = np.random.default_rng(STREAM).permutation(groups.size)
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.unique(groups, return_counts=True)[1]
    kept = np.cumsum(sizes) - sizes  # the first of every group
    free = np.delete(order, kept)
    count = min(round(share * groups.size), free.size)
    chosen = np.zeros(groups.size, bool)
    # Evenly spaced among examples sorted by group.
    chosen[free[((np.arange(count) + 0.5) * free.size / max(count, 1)).astype(np.int64)]] = True
    return chosen
