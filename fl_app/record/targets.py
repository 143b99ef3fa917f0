"""When a run reaches a target accuracy: first, and to stay."""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

WINDOW = 5  # evaluations of a running mean


def first_at(accuracies: Sequence[float], target: float, window: int = 1) -> int | None:
    """Number of the first evaluation at which the mean of the last `window` reaches `target`."""
    there = np.flatnonzero(_running_mean(accuracies, window) >= target)
    return int(there[0]) + window - 1 if there.size else None


def stays_at(accuracies: Sequence[float], target: float, window: int = WINDOW) -> int | None:
    """Number of the evaluation from which the mean of the last `window` is never below `target`.

    One lucky evaluation is the first at a target, and says little of a curve that is noisy. This is
    None if the last mean is below, or if there are fewer than `window` evaluations.
    """
    means = _running_mean(accuracies, window)
    if not means.size or not means[-1] >= target:
        return None
    below = np.flatnonzero(~(means >= target))  # also where it is unknown
    return int(below[-1] + 1 if below.size else 0) + window - 1


def _running_mean(values: Sequence[float], window: int) -> NDArray[np.float64]:
    """Mean of every `window` neighbours, shape ``(n - window + 1,)``; empty if they are fewer."""
    if len(values) < window:
        return np.empty(0)
    windows = sliding_window_view(np.asarray(values, float), window)
    return np.asarray(windows.mean(axis=1))
