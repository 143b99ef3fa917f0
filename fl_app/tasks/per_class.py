"""Tests a model class by class."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require
from fl_app.record.measures import expected_accuracy, worst_decile


class ClassTask(Protocol):
    """A task whose test set has classes (`fl_app.tasks.task.Task`)."""

    @property
    def num_classes(self) -> int: ...

    @property
    def num_clients(self) -> int: ...

    def label_counts(self, client_id: int | None = None) -> NDArray[np.int64]:
        """Examples of each class that a client has, or the test set, shape ``(C,)``.

        Raises:
            ValueError: the task is one of sequences, whose tokens nobody counts by class.
        """
        ...

    def test(self, model: Any, *, recall: bool = False) -> Mapping[str, float]:
        """Metrics; with `recall` also ``recall_0`` ... ``recall_<C-1>``."""
        ...


class PerClass:
    """Tests a model class by class.

    A client's accuracy is that on test examples mixed as the classes of its own training data:
    the mean recall with the client's shares as weights. It costs one matrix product however many
    clients there are. What sets clients apart within a class, such as handwriting, it cannot see.

    Args:
        task: has classes.
        metrics: ``"recall"`` of every class and ``"clients"``, mean and worst decile of the
            clients' accuracies, or one of these.

    Raises:
        ValueError: the task is one of sequences, or ``"clients"`` is asked for and a class has no
            test examples.
    """

    def __init__(self, task: ClassTask, metrics: Sequence[str]) -> None:
        self._task = task
        self._recall = "recall" in metrics
        self._mix: NDArray[np.float64] | None = None
        missing = np.flatnonzero(task.label_counts() == 0).tolist()
        if "clients" in metrics:
            require(
                not missing,
                "metrics",
                list(metrics),
                f"without clients, for there are no test examples of the classes {missing}",
                "nobody could say how well these are known",
            )
            counts = np.stack([task.label_counts(i) for i in range(task.num_clients)])
            self._mix = counts / counts.sum(axis=1, keepdims=True)

    def __call__(self, model: Any) -> dict[str, float]:
        """The task's metrics and those asked for."""
        metrics = dict(self._task.test(model, recall=True))
        keys = [f"recall_{label}" for label in range(self._task.num_classes)]
        if self._mix is not None:
            accuracies = expected_accuracy(self._mix, np.array([metrics[key] for key in keys]))
            metrics["client_accuracy_mean"] = float(accuracies.mean())
            metrics["client_accuracy_worst_decile"] = worst_decile(accuracies)
        if not self._recall:
            for key in keys:
                del metrics[key]
        return metrics
