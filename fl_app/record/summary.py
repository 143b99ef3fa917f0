"""The contents of ``summary.json``, and the measures in it: functions of a run's `History`."""

import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fl_app.core.events import Failed, Rejected
from fl_app.core.score import ACCURACY, Score, score_of
from fl_app.record.history import Evaluation, History

if TYPE_CHECKING:
    from fl_app.engine.engine import Outcome

COLLAPSED_AT = 0.99  # share of the test examples predicted as one class
MIN_R2 = 0.02  # a model that explains less of the targets' variance has collapsed
STABILITY_WINDOW = 10  # evaluations
WINDOW = 5  # evaluations of a running mean


def of_outcome(
    outcome: "Outcome",
    history: History,
    wall_seconds: float,
    report_accuracy: float,
    score: Score | None = None,
) -> dict[str, Any]:
    """The results of a run in ``summary.json``.

    They are the keys below, those of `of_target` where accuracy is the score, those of
    `of_last_evaluation` that the task and the configured ``metrics`` give, and those of
    `of_clients`. The keys of the score end with its name; None is unknown or never happened.
    ``aggregation`` has, by name, the mean of every number that the strategy reported of its
    aggregations.

    Args:
        outcome: of the run.
        history: of the run.
        wall_seconds: that the run took.
        report_accuracy: in [0, 1], the accuracy to which times are measured.
        score: of the task; None = accuracy or, if no evaluation has it, the loss.
    """
    metrics = [evaluation.metrics for evaluation in history.evaluations]
    score = score or score_of(metrics)
    name = (score or ACCURACY).name
    scores = [numbers[name] for numbers in metrics if name in numbers]
    losses = [numbers["loss"] for numbers in metrics if "loss" in numbers]
    last = late(history.evaluations, name)
    log, plain = stability(last)
    has_accuracy = name == ACCURACY.name
    summary = {
        "num_versions": outcome.version,
        "client_updates": history.client_updates,
        "virtual_seconds": outcome.seconds,
        "wall_seconds": wall_seconds,
        "wall_updates_per_second": history.client_updates / wall_seconds,
        "score": score and score.name,
        "higher_is_better": score and score.higher_is_better,
        f"final_{name}": finite_mean(scores[-1:]),
        f"best_{name}": score and score.best(scores),
        f"last10_{name}": finite_mean(last),
        "final_loss": finite_mean(losses[-1:]),
        "model_sha256": hashlib.sha256(outcome.params.tobytes()).hexdigest(),
        "mean_staleness": mean_age(history.ages) if history.ages else None,
        "median_staleness": age_quantile(history.ages, 0.5) if history.ages else None,
        "p90_staleness": age_quantile(history.ages, 0.9) if history.ages else None,
        "max_staleness": max(history.ages, default=None),
        "bytes_up": history.bytes_up,
        "bytes_down": history.bytes_down,
        "orders": history.num_orders,
        "failures": history.failures,
        "rejected": history.rejected,
        **_first("first_failure", history.first_failure),
        **_first("first_rejection", history.first_rejection),
        "stopped": outcome.stopped,
        **({"std_of_last10_log10_accuracy": _or_null(log)} if has_accuracy else {}),
        f"std_of_last10_{name}": _or_null(plain),
        **(of_target(history.evaluations, report_accuracy) if has_accuracy else {}),
        "joules": history.joules,
        "orders_wasted": history.orders_wasted,
        "aggregation": {key: _or_null(total / n) for key, (total, n) in history.reported.items()},
        **of_last_evaluation(metrics[-1] if metrics else {}, name),
        **of_clients(history),
    }
    if clash := sorted(summary.keys() & outcome.totals.keys()):
        reason = "which are names of the run's own numbers: these are kept"
        warnings.warn(f"totals of the strategy have {', '.join(clash)}, {reason}", stacklevel=2)
    return {**outcome.totals, **summary}


def _first(key: str, event: Failed | Rejected | None) -> dict[str, str]:
    if event is None:
        return {}
    prefix = "" if event.client is None else f"client {event.client}: "
    return {key: f"{prefix}{event.reason}"}


def finite_mean(values: Sequence[float]) -> float | None:
    """Mean of the values; None if it is unknown or not finite, since JSON has no NaN."""
    return _or_null(float(np.mean(values))) if values else None


def late(evaluations: Sequence[Evaluation], name: str) -> list[float]:
    """A metric in the last ten evaluations that have it; without version 0, which is untrained."""
    known = [evaluation for evaluation in evaluations if name in evaluation.metrics]
    trained = [evaluation for evaluation in known if evaluation.version > 0]
    return [evaluation.value(name) for evaluation in (trained or known)[-STABILITY_WINDOW:]]


def stability(accuracies: Sequence[float]) -> tuple[float, float]:
    """Standard deviation of accuracies; small values mean steady training.

    Returns:
        Population standard deviation of log10(accuracy), the measure of WKAFL's Table 3, and of the
        accuracy. Both are NaN for fewer than two accuracies, the former also if an accuracy is 0.
    """
    last = np.array(accuracies, float)
    if last.size < 2:
        return math.nan, math.nan
    with np.errstate(invalid="ignore"):  # of a run that diverged
        log = float(np.log10(last).std()) if (last > 0).all() else math.nan
        return log, float(last.std())


def mean_age(ages: Counter[int]) -> float:
    """Mean staleness in versions, from the number of updates of each age; there must be some."""
    return sum(age * count for age, count in ages.items()) / ages.total()


def age_quantile(ages: Counter[int], share: float) -> int:
    """The smallest age that at least a share of the updates does not exceed.

    Args:
        ages: number of updates of each age; not empty.
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
        ``client_eval_version``, ``client_eval_clients``, ``client_eval_examples``, and for every
        metric ``client_eval_<metric>_mean``, ``_std`` and ``_worst_decile``.
    """
    if not history.client_evaluations:
        return {}
    last = history.client_evaluations[-1]
    return {
        "client_eval_version": last.version,
        "client_eval_clients": last.clients,
        "client_eval_examples": last.num_examples,
        **{f"client_eval_{key}": _or_null(value) for key, value in last.metrics.items()},
    }


def of_target(evaluations: Sequence[Evaluation], target_accuracy: float) -> dict[str, Any]:
    """Keys of ``summary.json``: when a run reached its target accuracy."""
    values: dict[str, Any] = {"report_accuracy": target_accuracy}
    for event, find in (("target", first_at), ("stay_at_target", stays_at)):
        evaluation = find(evaluations, target_accuracy)
        values[f"seconds_to_{event}"] = evaluation and evaluation.t
        values[f"updates_to_{event}"] = evaluation and evaluation.client_updates
        values[f"versions_to_{event}"] = evaluation and evaluation.version
    return values


def first_at(evaluations: Sequence[Evaluation], target: float) -> Evaluation | None:
    """The first evaluation whose accuracy reaches `target`."""
    return next((item for item in evaluations if item.accuracy >= target), None)


def stays_at(evaluations: Sequence[Evaluation], target: float) -> Evaluation | None:
    """The evaluation from which the mean of the last five accuracies is never below `target`.

    A noisy curve may first reach a target in one lucky evaluation, which says little. This is None
    if the last mean is below `target`, or if there are fewer than five evaluations.
    """
    if len(evaluations) < WINDOW:
        return None
    accuracies = [evaluation.accuracy for evaluation in evaluations]
    means = sliding_window_view(accuracies, WINDOW).mean(axis=1)
    below = np.flatnonzero(~(means >= target))  # also where the accuracy is unknown
    first = below[-1] + 1 if below.size else 0
    return evaluations[first + WINDOW - 1] if first < means.size else None


def of_last_evaluation(metrics: Mapping[str, float], score: str) -> dict[str, Any]:
    """Keys of ``summary.json`` from the metrics of the last evaluation, if it has them.

    Args:
        metrics: by name.
        score: the one by which the run is judged.

    Returns:
        ``collapsed``: whether the model predicts (nearly) always the same class although its loss
        is finite, or numbers no better than their mean; ``final_perplexity``; ``recall``, a list
        over the classes.
    """
    summary: dict[str, Any] = {}
    if "commonest_prediction" in metrics:
        constant = metrics["commonest_prediction"] >= COLLAPSED_AT
        summary["collapsed"] = constant and math.isfinite(metrics["loss"])
    if "r2" in metrics and score == "rmse":
        summary["collapsed"] = metrics["r2"] < MIN_R2
    if "perplexity" in metrics:
        summary["final_perplexity"] = _or_null(metrics["perplexity"])
    if recall := [_or_null(value) for key, value in metrics.items() if key.startswith("recall_")]:
        summary["recall"] = recall
    return summary


def _or_null(value: float) -> float | None:
    """None for a number that is not finite, since JSON has no NaN."""
    return value if math.isfinite(value) else None


def smaller(summary: Mapping[str, Any]) -> str:
    """A hint which rate to lower; clients that send the gradient of a mini-batch take no steps."""
    steps = summary.get("work_per_update") != "1 mini-batch"
    return f"a tenth of algorithm.{'client.local_lr' if steps else 'strategy.server_lr'} may help"


def trouble_message(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Summarise failed orders, rejected replies, and runs whose results are void.

    Args:
        summaries: contents of ``summary.json`` by the names of the runs; "" is a single one.

    Returns:
        A sentence; "" if there was no trouble.
    """
    runs = {name: summary for name, summary in summaries.items() if "orders" in summary}
    sentences = []
    total = sum(summary["orders"] for summary in runs.values())
    for key, first, text in (
        ("failures", "first_failure", f"of {total:,} orders failed"),
        ("rejected", "first_rejection", "replies were rejected"),
    ):
        if count := sum(summary[key] for summary in runs.values()):
            name, run = next((name, summary) for name, summary in runs.items() if summary[key])
            sentences.append(f"{count:,} {text}, first: {name}{name and ', '}{run[first]}")
            if "non-finite" in run[first]:
                sentences.append(smaller(run))
    summaries = {n: {**s, "untrained": s.get("num_versions") == 0} for n, s in summaries.items()}
    for key, text in (
        ("made_up", "NOT THE REAL DATA but random ones"),
        ("untrained", "NO VERSION was published: scores are those of the first model"),
        ("collapsed", "the model predicts no better than a constant"),
        ("private", "the server has the first values of private layers (see client_eval_every)"),
    ):
        names = [name for name, summary in summaries.items() if summary.get(key)]
        if key == "collapsed":  # private layers have learned nothing on the server
            names = [name for name in names if not summaries[name].get("private")]
        if names:
            text += f" ({smaller(summaries[names[0]])})" * (key == "collapsed")
            sentences.append(f"{text}{': ' * any(names)}{', '.join(names)}")
    for name, summary in summaries.items():
        if silent := ", ".join(map(str, summary.get("without_update", ()))):
            sentences.append(f"{name}{name and ', '}NO UPDATE from clients {silent}")
    return "; ".join(sentences)
