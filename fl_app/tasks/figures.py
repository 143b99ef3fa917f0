"""Metrics of a set of examples, from sums over it; tensors of torch or arrays of NumPy."""

import math
from typing import Any

import numpy as np

LARGEST_EXPONENT = 700.0  # the exponential of more overflows


def of_classes(counts: Any, loss: float, total: int, *, sequences: bool) -> dict[str, float]:
    """See `fl_app.tasks.objective.Classification`.

    Args:
        counts: correct and all predictions by class, shape ``(2, C)``.
        loss: mean over all targets.
        total: number of targets, >= 1.
        sequences: whether a target is a sequence of classes.
    """
    hits, chosen = counts
    figures = {"accuracy": int(hits.sum()) / total, "loss": loss}
    if sequences:
        figures["perplexity"] = math.inf if loss > LARGEST_EXPONENT else math.exp(loss)
    else:
        figures["commonest_prediction"] = int(chosen.max()) / total
    return figures


def of_labels(counts: Any, loss: float, total: int, num_labels: int) -> dict[str, float]:
    """See `fl_app.tasks.objective.MultiLabel`.

    Args:
        counts: right entries, right examples, entries that are both positive and predicted so,
            predicted so, positive.
        loss: mean over all entries.
        total: number of entries, >= 1.
        num_labels: entries of one example.
    """
    right, exact, both, predicted, wanted = counts.tolist()
    positive = predicted + wanted
    return {
        "accuracy": right / total,
        "loss": loss,
        "exact_match": exact * num_labels / total,
        "f1": 2 * both / positive if positive else math.nan,
    }


def of_numbers(counts: Any, loss: float, total: int) -> dict[str, float]:
    """See `fl_app.tasks.objective.Regression`.

    Args:
        counts: of each output the sums of squared and absolute errors, of targets and of squared
            targets, and the number of examples, shape ``(5, num_outputs)``, float64.
        loss: mean over all entries.
        total: number of entries, >= 1.
    """
    squared, absolute, targets, squared_targets, num = np.asarray(counts)
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
