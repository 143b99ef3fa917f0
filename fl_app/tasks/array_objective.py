"""Objectives of NumPy arrays: `fl_app.tasks.objective` without torch, with the usual losses."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_app.tasks import figures
from fl_app.tasks.strata import of_labels, of_numbers

Array: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ArrayObjective(ABC):
    """Loss and metrics of one kind of targets; see `fl_app.tasks.objective.Objective`."""

    num_outputs: int

    kind: ClassVar[str]
    score: ClassVar[str]
    higher_is_better: ClassVar[bool] = True

    @property
    def has_accuracy(self) -> bool:
        """Whether ``"accuracy"`` is among the metrics."""
        return self.score == "accuracy"

    @abstractmethod
    def loss(self, output: Array, target: NDArray[Any]) -> tuple[np.float32, Array]:
        """Mean loss over a batch, and its gradient by the output."""

    @abstractmethod
    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        """A class for each example, by which a partition distributes them, shape ``(n,)``."""

    @abstractmethod
    def counts(self, output: Array, target: NDArray[Any]) -> NDArray[Any]:
        """Sums over a batch from which `figures` follow; those of several batches add up."""

    @abstractmethod
    def figures(self, counts: NDArray[Any], loss: float, total: int) -> dict[str, float]:
        """The metrics of a set of examples; see `fl_app.tasks.objective.Objective.figures`."""


@dataclass(frozen=True, eq=False)
class ArrayClassification(ArrayObjective):
    """Each target is one of ``num_outputs`` classes; `classes` are their names."""

    classes: tuple[Any, ...] = ()

    kind = "classification"
    score = "accuracy"

    def loss(self, output: Array, target: NDArray[Any]) -> tuple[np.float32, Array]:
        """Cross-entropy."""
        rows = np.arange(len(target))
        shifted = output - output.max(1, keepdims=True)
        slope = np.exp(shifted)
        sums = slope.sum(1, keepdims=True)
        loss = np.mean(np.log(sums[:, 0]) - shifted[rows, target], dtype=np.float32)
        slope /= sums
        slope[rows, target] -= 1
        slope /= np.float32(len(target))
        return loss, slope

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        return targets

    def counts(self, output: Array, target: NDArray[Any]) -> NDArray[Any]:
        """Correct and all predictions by class, shape ``(2, C)``."""
        chosen = output.argmax(1)
        both = target[chosen == target], chosen
        return np.stack([np.bincount(labels, minlength=self.num_outputs) for labels in both])

    def figures(self, counts: NDArray[Any], loss: float, total: int) -> dict[str, float]:
        return figures.of_classes(counts, loss, total, sequences=False)


@dataclass(frozen=True, eq=False)
class ArrayMultiLabel(ArrayObjective):
    """Each target says of every label whether it applies; `labels` are their names."""

    labels: tuple[Any, ...] = ()

    kind = "multi_label"
    score = "accuracy"

    def loss(self, output: Array, target: NDArray[Any]) -> tuple[np.float32, Array]:
        """Binary cross-entropy."""
        small = np.exp(-np.abs(output))  # of a number that does not overflow
        entries = np.maximum(output, 0) - output * target + np.log1p(small)
        share = np.where(output >= 0, np.float32(1), small) / (1 + small)
        return np.mean(entries, dtype=np.float32), (share - target) / np.float32(target.size)

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        return of_labels(targets)

    def counts(self, output: Array, target: NDArray[Any]) -> NDArray[Any]:
        predicted, wanted = output > 0, target > 0.5
        right = predicted == wanted
        sums = (right, right.all(-1), predicted & wanted, predicted, wanted)
        return np.array([part.sum() for part in sums])

    def figures(self, counts: NDArray[Any], loss: float, total: int) -> dict[str, float]:
        return figures.of_labels(counts, loss, total, self.num_outputs)


@dataclass(frozen=True, eq=False)
class ArrayRegression(ArrayObjective):
    """Each target is ``num_outputs`` numbers; see `fl_app.tasks.objective.Regression`."""

    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    kind = "regression"
    score = "rmse"
    higher_is_better = False

    def loss(self, output: Array, target: NDArray[Any]) -> tuple[np.float32, Array]:
        """Squared error."""
        if self.mean:
            mean, deviation = np.array([self.mean, self.deviation], np.float32)
            target = (target - mean) / deviation
        error = output.reshape(target.shape) - target
        slope = (error * np.float32(2 / target.size)).reshape(output.shape)
        return np.mean(np.square(error), dtype=np.float32), slope

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        return of_numbers(targets)

    def counts(self, output: Array, target: NDArray[Any]) -> NDArray[Any]:
        """Sums over examples for each output, shape ``(5, num_outputs)``."""
        target = target.astype(np.float64)
        predicted = output.reshape(target.shape).astype(np.float64)
        if self.mean:
            predicted = predicted * np.array(self.deviation) + np.array(self.mean)
        error = predicted - target
        parts = (np.square(error), np.abs(error), target, np.square(target), np.ones_like(target))
        return np.stack([part.sum(0) for part in parts])

    def figures(self, counts: NDArray[Any], loss: float, total: int) -> dict[str, float]:
        return figures.of_numbers(counts, loss, total)
