"""Tests a model class by class."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_app.core.errors import require
from fl_app.core.vector import worst_decile
from fl_app.record.measures import expected_accuracy

if TYPE_CHECKING:
    from fl_app.tasks.task import Task


def per_class(task: "Task", metrics: Sequence[str]) -> Callable[[Any], dict[str, float]]:
    """A test of a model class by class: its task's metrics, and those in `metrics`.

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
    counts, mix = task.label_counts(), None
    keys = [f"recall_{label}" for label in range(counts.size)]
    if "clients" in metrics:
        missing = np.flatnonzero(counts == 0).tolist()
        bound = f"without clients, as the classes {missing} have no test examples"
        told = "the accuracy on them is unknown"
        require(not missing, "metrics", list(metrics), bound, told)
        own = task.class_counts()
        mix = own / own.sum(axis=1, keepdims=True)

    def test(model: Any) -> dict[str, float]:
        measured = dict(task.test(model, recall=True))
        recalls = {key: measured.pop(key) for key in keys}
        if "recall" in metrics:
            measured |= recalls
        if mix is not None:
            accuracies = expected_accuracy(mix, np.array([*recalls.values()]))
            measured["client_accuracy_mean"] = float(accuracies.mean())
            measured["client_accuracy_worst_decile"] = worst_decile(accuracies)
        return measured

    return test
