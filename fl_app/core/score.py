"""The score of a run: the metric by which it is judged, and which direction is better."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Score(NamedTuple):
    """The metric by which a run is judged.

    Attributes:
        name: of the metric, such as ``"accuracy"`` or ``"rmse"``.
        higher_is_better: its direction.
    """

    name: str
    higher_is_better: bool = True

    @property
    def is_share(self) -> bool:
        """Whether it is in [0, 1] and written as a percentage."""
        return self.name.endswith("accuracy")

    @property
    def form(self) -> str:
        """Format of a value."""
        return "{:.1%}" if self.is_share else "{:.4g}"

    def best(self, values: Iterable[float]) -> float | None:
        """The best of the finite values; None if there is none."""
        known = [value for value in values if math.isfinite(value)]
        if not known:
            return None
        return max(known) if self.higher_is_better else min(known)


ACCURACY = Score("accuracy")
LOSS = Score("loss", higher_is_better=False)


def score_of(metrics: Iterable[Mapping[str, Any]]) -> Score | None:
    """The score of evaluations whose task names none: accuracy or else loss, if they have it."""
    names = {name for each in metrics for name in each}
    return next((score for score in (ACCURACY, LOSS) if score.name in names), None)
