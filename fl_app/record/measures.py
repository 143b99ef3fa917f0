"""The measures of a run beside accuracy and loss: functions of its `History`."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fl_app.record.history import Evaluation, History

COLLAPSED_AT = 0.99  # of the test examples put into one class
LEAST_R2 = 0.02  # share of the targets' variance that a model explains at least
STABILITY_WINDOW = 10  # evaluations
WINDOW = 5  # evaluations of a running mean


def stability(accuracies: Sequence[float]) -> tuple[float, float]:
    """Standard deviation of the last ten accuracies; small values mean steady training.

    Returns:
        Population standard deviation of log10(accuracy), the measure of WKAFL's Table 3, and of the
        accuracy. Both are NaN for fewer than two accuracies, the former also if an accuracy is 0.
    """
    last = np.array(accuracies[-STABILITY_WINDOW:], float)
    if last.size < 2:
        return math.nan, math.nan
    log = float(np.log10(last).std()) if (last > 0).all() else math.nan
    return log, float(last.std())


def mean_age(ages: Counter[int]) -> float:
    """Mean staleness in versions, of ages and how many updates had each; there must be some."""
    return sum(age * count for age, count in ages.items()) / ages.total()


def age_quantile(ages: Counter[int], share: float) -> int:
    """The smallest age that at least a share of the updates does not exceed.

    Args:
        ages: how many updates had each age; there must be some.
        share: of the updates, in (0, 1].
    """
    return int(np.quantile([*ages.elements()], share, method="inverted_cdf"))


def columns(history: History) -> dict[str, float]:
    """The totals so far, which are columns of ``metrics.csv``."""
    columns: dict[str, float] = {
        "client_updates": history.client_updates,
        "bytes_down": history.bytes_down,
        "bytes_up": history.bytes_up,
        "orders_wasted": history.orders_wasted,
    }
    if history.joules is not None:
        columns["joules"] = history.joules
    return columns


def of_clients(history: History) -> dict[str, float | None]:
    """Keys of ``summary.json`` from the last evaluation on clients, if there is one.

    Returns:
        ``client_eval_version``, ``client_eval_clients``, ``client_eval_examples``, for every metric
        ``client_eval_<metric>_mean``, ``_std`` and ``_worst_decile``, and ``client_eval_seconds``,
        what all evaluations took of the clients' time.
    """
    if not history.client_evaluations:
        return {}
    last = history.client_evaluations[-1]
    return {
        "client_eval_version": last.version,
        "client_eval_clients": last.clients,
        "client_eval_examples": last.num_examples,
        **{f"client_eval_{key}": _known(value) for key, value in last.metrics.items()},
        "client_eval_seconds": history.seconds_evaluating,
    }


def of_run(history: History, target_accuracy: float, score: str = "accuracy") -> dict[str, Any]:
    """Keys of ``summary.json``; None is unknown or never happened.

    Args:
        history: of the whole run.
        target_accuracy: in [0, 1], the accuracy to which times are measured.
        score: name of the metric by which the run is judged.

    Returns:
        ``last10_accuracy_std`` (`stability`), with the name of the score. Only of accuracies:
        ``last10_log10_accuracy_std``; ``report_accuracy`` (the target) with ``seconds_to_target``,
        ``updates_to_target``, ``versions_to_target`` (of the first evaluation there) and
        ``seconds_to_stay_at_target`` and so on (`stays_at`). Of all: ``joules``;
        ``orders_wasted``; ``aggregation``, by name the mean of every number that the strategy
        reported of its aggregations.
    """
    log, plain = stability([e.value(score) for e in history.evaluations])
    of_accuracy = score == "accuracy"
    return {
        **({"last10_log10_accuracy_std": _known(log)} if of_accuracy else {}),
        f"last10_{score}_std": _known(plain),
        **(of_target(history.evaluations, target_accuracy) if of_accuracy else {}),
        "joules": history.joules,
        "orders_wasted": history.orders_wasted,
        "aggregation": {name: total / n for name, (total, n) in history.reported.items()},
    }


def of_target(evaluations: Sequence[Evaluation], target_accuracy: float) -> dict[str, Any]:
    """Keys of ``summary.json``: when a run reached its target accuracy."""
    reached = first_at(evaluations, target_accuracy)
    stays = stays_at(evaluations, target_accuracy)
    return {
        "report_accuracy": target_accuracy,
        "seconds_to_target": reached and reached.t,
        "updates_to_target": reached and reached.client_updates,
        "versions_to_target": reached and reached.version,
        "seconds_to_stay_at_target": stays and stays.t,
        "updates_to_stay_at_target": stays and stays.client_updates,
        "versions_to_stay_at_target": stays and stays.version,
    }


def first_at(evaluations: Sequence[Evaluation], target: float) -> Evaluation | None:
    """The first evaluation whose accuracy reaches `target`."""
    return next((each for each in evaluations if each.accuracy >= target), None)


def stays_at(evaluations: Sequence[Evaluation], target: float) -> Evaluation | None:
    """The evaluation from which the mean of the last five accuracies is never below `target`.

    A noisy curve may reach a target first in one lucky evaluation, which says little. This is None
    if the last mean is below `target`, or if there are fewer than five evaluations.
    """
    if len(evaluations) < WINDOW:
        return None
    accuracies = [evaluation.accuracy for evaluation in evaluations]
    means = sliding_window_view(accuracies, WINDOW).mean(axis=1)
    below = np.flatnonzero(~(means >= target))  # also where the accuracy is unknown
    first = below[-1] + 1 if below.size else 0
    return evaluations[first + WINDOW - 1] if first < means.size else None


def of_last_evaluation(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Keys of ``summary.json`` from the metrics of the last evaluation, if it has them.

    Returns:
        ``collapsed``: whether the model predicts (nearly) always the same class although its loss
        is finite, or numbers no better than their mean; ``final_perplexity``; ``recall``, a list
        over the classes.
    """
    summary: dict[str, Any] = {}
    if "commonest_prediction" in metrics:
        summary["collapsed"] = metrics["commonest_prediction"] >= COLLAPSED_AT and math.isfinite(
            metrics["loss"]
        )
    if "r2" in metrics:
        summary["collapsed"] = metrics["r2"] < LEAST_R2
    if "perplexity" in metrics:
        summary["final_perplexity"] = _known(metrics["perplexity"])
    recall = [_known(value) for key, value in metrics.items() if key.startswith("recall_")]
    if recall:
        summary["recall"] = recall
    return summary


def _known(value: float) -> float | None:
    """None for a number that is not finite, since JSON has no NaN."""
    return value if math.isfinite(value) else None
