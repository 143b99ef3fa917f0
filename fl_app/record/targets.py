"""When a run reaches a target accuracy: first, and to stay."""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fl_app.record.history import Evaluation

WINDOW = 5  # evaluations of a running mean


def first_at(
    evaluations: Sequence[Evaluation], target: float, window: int = 1
) -> Evaluation | None:
    """The first evaluation at which the mean of the last `window` accuracies reaches `target`."""
    there = np.flatnonzero(_running_mean(evaluations, window) >= target)
    return evaluations[there[0] + window - 1] if there.size else None


def stays_at(evaluations: Sequence[Evaluation], target: float) -> Evaluation | None:
    """The evaluation from which the mean of the last five accuracies is never below `target`.

    A noisy curve may reach a target first in one lucky evaluation, which says little. This is None
    if the last mean is below `target`, or if there are fewer than five evaluations.
    """
    means = _running_mean(evaluations, WINDOW)
    if not means.size or not means[-1] >= target:
        return None
    below = np.flatnonzero(~(means >= target))  # also where the accuracy is unknown
    return evaluations[(below[-1] + 1 if below.size else 0) + WINDOW - 1]


def _running_mean(evaluations: Sequence[Evaluation], window: int) -> NDArray[np.float64]:
    """Mean accuracy of every `window` neighbours, shape ``(n - window + 1,)``, or empty."""
    accuracies = np.array([evaluation.accuracy for evaluation in evaluations])
    if accuracies.size < window:
        return np.empty(0)
    return np.asarray(sliding_window_view(accuracies, window).mean(axis=1))
