"""A class for each example, by which a partition distributes examples whose targets are none."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_STRATA = 10  # of numbers


def of_labels(targets: NDArray[Any]) -> NDArray[np.int64]:
    """Examples with equal labels are one class; targets have the shape ``(n, C)``."""
    return np.unique(targets, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def of_numbers(targets: NDArray[Any]) -> NDArray[np.int64]:
    """The tenth of all examples that an example belongs to, ordered by the first number.

    Args:
        targets: shape ``(n, k)``.
    """
    first = targets[:, 0]
    bounds = np.quantile(first, np.arange(1, NUM_STRATA) / NUM_STRATA)
    return np.searchsorted(bounds, first).astype(np.int64)
