"""Objectives: what a task's targets are, with their loss and their metrics.

A target is a class (`Classification`), or one or more numbers (`Regression`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fl_app.core.score import ACCURACY, LOSS, Score
from fl_app.core.types import Array, Indices

LARGEST_EXPONENT = 700.0  # the exponential of more overflows
NUM_STRATA = 10  # of numbers

# Maps a model's output and the targets of a batch to their mean loss, a scalar.
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Objective(ABC):
    """Loss and metrics of one kind of targets.

    Args:
        num_outputs: numbers that the model gives for one target, >= 1.
        criterion: mean loss over a batch instead of the usual one.

    Attributes:
        kind: ``"classification"`` or ``"regression"``.
    """

    num_outputs: int
    criterion: Loss | None = None

    kind: ClassVar[str]

    @property
    @abstractmethod
    def score(self) -> Score:
        """The main metric."""

    def with_loss(self, loss: Loss) -> Self:
        """This objective with another loss, which gets the targets as they are."""
        return replace(self, criterion=loss)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean loss over a batch, a scalar."""
        output, target = self._compared(output, target)
        if self.criterion is not None:
            return self.criterion(output, target)
        return self._usual(output, target, "mean")

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Loss of every example, shape ``(n,)``, whose mean is `loss`.

        Raises:
            NotImplementedError: the objective has a loss of its own, of which only means are known.
        """
        if self.criterion is not None:
            raise NotImplementedError("a loss of its own has no loss of each example")
        losses = self._usual(*self._compared(output, target), "none").view(target.shape)
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)

    def _compared(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Output and target as a loss takes them."""
        return output, target

    @abstractmethod
    def _usual(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        """The loss without a `criterion`, with torch's ``reduction``."""

    @abstractmethod
    def output_shape(self, target: Tensor) -> tuple[int, ...]:
        """The shape of the output that belongs to a batch of targets."""

    @abstractmethod
    def strata(self, targets: Tensor) -> Indices:
        """A class for each example, by which a partition distributes them, shape ``(n,)``."""

    def answers(self, output: Tensor) -> Array:
        """Predictions as classes or in the unit of the data, shape ``(n, ...)``."""
        return output.numpy()

    @abstractmethod
    def counts(self, output: Tensor, target: Tensor) -> Tensor:
        """Sums over a batch from which `figures` follow; those of several batches add up."""

    @abstractmethod
    def figures(self, counts: Tensor, loss: float, total: int) -> dict[str, float]:
        """The metrics of a set of examples.

        Args:
            counts: the sum of its batches' `counts`.
            loss: mean over all entries of its targets.
            total: number of entries of its targets, >= 1.
        """


@dataclass(frozen=True, eq=False)
class Classification(Objective):
    """Each target is one of C classes; ``num_outputs`` is C, and outputs are logits.

    Metrics: ``accuracy`` in [0, 1], ``loss`` (cross-entropy), and ``commonest_prediction``, the
    share of the most frequent predicted class: 1.0 for a model that has collapsed to a constant.
    Of sequences, all are means over tokens, and ``perplexity``, the exponential of the loss, takes
    the place of ``commonest_prediction``.

    Args:
        sequences: whether a target is a sequence of classes, shape ``(length,)``.
        classes: names of the classes, in the order of the model's outputs; () = 0 to C - 1.
    """

    sequences: bool = False
    classes: tuple[Any, ...] = ()

    kind = "classification"
    score = ACCURACY

    def _usual(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.cross_entropy(output.flatten(0, -2), target.flatten(), reduction=reduction)

    def output_shape(self, target: Tensor) -> tuple[int, ...]:
        return (*target.shape, self.num_outputs)

    def strata(self, targets: Tensor) -> Indices:
        if self.sequences:  # examples have the order of the text
            return np.zeros(len(targets), np.int64)
        return targets.numpy()

    def answers(self, output: Tensor) -> Array:
        names: Array = np.asarray(self.classes or range(self.num_outputs))
        return names.take(output.argmax(-1).numpy())

    def counts(self, output: Tensor, target: Tensor) -> Tensor:
        """Correct and all predictions by class, shape ``(2, C)``."""
        chosen, target = output.argmax(-1).cpu(), target.cpu()
        both = target[chosen == target], chosen.flatten()
        return torch.stack([torch.bincount(labels, minlength=self.num_outputs) for labels in both])

    def figures(self, counts: Tensor, loss: float, total: int) -> dict[str, float]:
        hits, chosen = counts
        measured = {"accuracy": int(hits.sum()) / total, "loss": loss}
        if self.sequences:
            measured["perplexity"] = math.inf if loss > LARGEST_EXPONENT else math.exp(loss)
        else:
            measured["commonest_prediction"] = int(chosen.max()) / total
        return measured


@dataclass(frozen=True, eq=False)
class Regression(Objective):
    """Each target is ``num_outputs`` numbers, which the model predicts.

    Metrics: ``rmse``, ``mae``, ``loss`` (mean squared error), and ``r2``, the share of the targets'
    variance that the model explains, a mean over outputs (NaN if an output's targets are all
    equal). They have the unit of the targets; with `mean` and `deviation` the loss has not.

    Args:
        mean: of each number to predict; the model then predicts standardised targets, else numbers
            far from 1 would need learning rates of their own; () = the targets as they are.
        deviation: as `mean`, > 0.
    """

    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    kind = "regression"

    @property
    def score(self) -> Score:
        """RMSE; the loss if it is an own one, whose outputs may be logits."""
        return Score("rmse", higher_is_better=False) if self.criterion is None else LOSS

    def with_loss(self, loss: Loss) -> Self:
        return replace(self, criterion=loss, mean=(), deviation=())

    def _compared(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        # Else an output of shape (n,) and a target of shape (n, 1) would give n x n differences.
        output = output.reshape(target.shape)
        if self.mean:
            target = (target - target.new_tensor(self.mean)) / target.new_tensor(self.deviation)
        return output, target

    def _usual(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.mse_loss(output, target, reduction=reduction)

    def output_shape(self, target: Tensor) -> tuple[int, ...]:
        return tuple(target.shape)

    def strata(self, targets: Tensor) -> Indices:
        """The tenth of all examples that an example belongs to, ordered by the first number."""
        first = targets[:, 0].numpy()
        bounds = np.quantile(first, np.arange(1, NUM_STRATA) / NUM_STRATA)
        return np.searchsorted(bounds, first).astype(np.int64)

    def answers(self, output: Tensor) -> Array:
        output = output.double().reshape(len(output), -1)
        if self.mean:
            output = output * output.new_tensor(self.deviation) + output.new_tensor(self.mean)
        return output.numpy()

    def counts(self, output: Tensor, target: Tensor) -> Tensor:
        """Sums over examples for each output, shape ``(5, num_outputs)``."""
        target = target.cpu().double()
        error = torch.from_numpy(self.answers(output.cpu())).view_as(target) - target
        parts = (error.square(), error.abs(), target, target.square(), torch.ones_like(target))
        return torch.stack([part.sum(0) for part in parts])

    def figures(self, counts: Tensor, loss: float, total: int) -> dict[str, float]:
        squared, absolute, targets, squared_targets, num = counts.numpy()
        variation = squared_targets - np.square(targets) / num
        # Rounding leaves a little of the variation of equal targets.
        known = variation > 1e-13 * squared_targets
        explained = 1 - squared / np.where(known, variation, 1.0)
        return {
            "rmse": math.sqrt(squared.sum() / total),
            "mae": float(absolute.sum() / total),
            "loss": loss,
            "r2": float(np.where(known, explained, math.nan).mean()),
        }


def objective_of(
    kind: str, outputs: Sequence[str], mean: tuple[float, ...], deviation: tuple[float, ...]
) -> Objective:
    """The objective of a kind of targets, one of `fl_app.tasks.encoding.KINDS`.

    Args:
        kind: of the targets.
        outputs: names of the classes, or of the numbers to predict.
        mean: of each number to predict, see `Regression`.
        deviation: see `Regression`.
    """
    if kind == "classification":
        return Classification(len(outputs), classes=(*outputs,))
    return Regression(len(outputs), mean=mean, deviation=deviation)
