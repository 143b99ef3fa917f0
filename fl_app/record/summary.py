"""The contents of ``summary.json``."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_app.core.events import Failed, Rejected
from fl_app.record import measures
from fl_app.record.history import History
from fl_app.record.score import ACCURACY, Score, score_of

if TYPE_CHECKING:
    from fl_app.engine.engine import Outcome

SMALLER = "a tenth of algorithm.client.local_lr may help"


def of_outcome(
    outcome: "Outcome",
    history: History,
    wall_seconds: float,
    report_accuracy: float,
    score: Score | None = None,
) -> dict[str, Any]:
    """The results of a run in ``summary.json``.

    They are the keys below, those of `measures.of_run`, those of `measures.of_last_evaluation`
    that the task and the configured ``metrics`` give, and those of `measures.of_clients`. The keys
    of the score end with its name.

    Args:
        outcome: of the run.
        history: of the run.
        wall_seconds: that the run took.
        report_accuracy: in [0, 1], the accuracy to which times are measured.
        score: of the task; None = accuracy or, if no evaluation has it, the loss.
    """
    measured = [evaluation.metrics for evaluation in history.evaluations]
    score = score or score_of(measured)
    name = (score or ACCURACY).name
    scores = [numbers[name] for numbers in measured if name in numbers]
    losses = [numbers["loss"] for numbers in measured if "loss" in numbers]
    return {
        "num_versions": outcome.version,
        "client_updates": history.client_updates,
        "virtual_seconds": outcome.seconds,
        "wall_seconds": wall_seconds,
        "updates_per_second": history.client_updates / wall_seconds,
        "score": score and score.name,
        "higher_is_better": score and score.higher_is_better,
        f"final_{name}": _finite(scores[-1:]),
        f"best_{name}": score and score.best(filter(math.isfinite, scores)),
        f"last10_{name}": _finite(scores[-10:]),
        "final_loss": _finite(losses[-1:]),
        "model_sha256": hashlib.sha256(outcome.params.tobytes()).hexdigest(),
        "mean_staleness": measures.mean_age(history.ages) if history.ages else None,
        "median_staleness": measures.age_quantile(history.ages, 0.5) if history.ages else None,
        "p90_staleness": measures.age_quantile(history.ages, 0.9) if history.ages else None,
        "max_staleness": max(history.ages, default=None),
        "bytes_up": history.bytes_up,
        "bytes_down": history.bytes_down,
        "orders": history.num_orders,
        "failures": history.failures,
        "rejected": history.rejected,
        **_first("first_failure", history.first_failure),
        **_first("first_rejection", history.first_rejection),
        "stopped": outcome.stopped,
        **outcome.totals,
        **measures.of_run(history, report_accuracy, name),
        **measures.of_last_evaluation(measured[-1] if measured else {}),
        **measures.of_clients(history),
    }


def _first(key: str, event: Failed | Rejected | None) -> dict[str, str]:
    if event is None:
        return {}
    who = "" if event.client is None else f"client {event.client}: "
    return {key: f"{who}{event.reason}"}


def _finite(values: Sequence[float]) -> float | None:
    """Mean of the values; None if it is unknown or not finite, since JSON has no NaN."""
    mean = float(np.mean(values)) if values else math.nan
    return mean if math.isfinite(mean) else None


def told_of_trouble(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """How many orders failed and replies were rejected, with the first of each; what is no result.

    Args:
        summaries: contents of ``summary.json`` by the names of the runs; "" is a single one.

    Returns:
        A sentence; "" if there was no trouble.
    """
    runs = {name: each for name, each in summaries.items() if "orders" in each}
    told = []
    total = sum(each["orders"] for each in runs.values())
    for key, first, what in (
        ("failures", "first_failure", f"of {total:,} orders failed"),
        ("rejected", "first_rejection", "replies were rejected"),
    ):
        if count := sum(each[key] for each in runs.values()):
            name, reason = next((name, each[first]) for name, each in runs.items() if each[key])
            told.append(f"{count:,} {what}, first: {name}{name and ', '}{reason}")
            if "non-finite" in reason:
                told.append(SMALLER)
    for key, what in (
        ("made_up", "NOT THE REAL DATA but random ones"),
        ("collapsed", f"the model predicts no better than a constant ({SMALLER})"),
    ):
        if names := [name for name, each in summaries.items() if each.get(key)]:
            told.append(f"{what}{': ' * any(names)}{', '.join(names)}")
    return "; ".join(told)
