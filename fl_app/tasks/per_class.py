"""Tests a model class by class."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require
from fl_app.core.vector import worst_decile
from fl_app.record.measures import expected_accuracy

if TYPE_CHECKING:
    from fl_app.tasks.task import Task


class PerClass:
    """Tests a model class by class.

    A client's accuracy is the accuracy on test examples with the class shares of the client's own
    training data: the mean recall, weighted by these shares. One matrix product computes it for all
    clients. It does not show differences within a class, such as handwriting.

    Args:
        task: a task with classes.
        metrics: ``"recall"`` (of every class), ``"clients"`` (mean and worst decile of the clients'
            accuracies), or both.

    Raises:
        ValueError: the task has no classes or no test set, or `metrics` has ``"clients"`` and a
            class has no test examples.
    """

    def __init__(self, task: "Task", metrics: Sequence[str]) -> None:
        self._task = task
        self._recall = "recall" in metrics
        self._mix: NDArray[np.float64] | None = None
        num_tested = task.label_counts()
        self._num_classes = num_tested.size
        missing = np.flatnonzero(num_tested == 0).tolist()
        if "clients" in metrics:
            require(
                not missing,
                "metrics",
                list(metrics),
                f"without clients, as the classes {missing} have no test examples",
                "the accuracy on them is unknown",
            )
            counts = task.class_counts()
            self._mix = counts / counts.sum(axis=1, keepdims=True)

    def __call__(self, model: Any) -> dict[str, float]:
        """The task's metrics and those in `metrics`."""
        metrics = dict(self._task.test(model, recall=True))
        keys = [f"recall_{label}" for label in range(self._num_classes)]
        if self._mix is not None:
            accuracies = expected_accuracy(self._mix, np.array([metrics[key] for key in keys]))
            metrics["client_accuracy_mean"] = float(accuracies.mean())
            metrics["client_accuracy_worst_decile"] = worst_decile(accuracies)
        if not self._recall:
            for key in keys:
                del metrics[key]
        return metrics
