"""The space of a search: keys with the values that they may take."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, TypeAlias

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    IntervalSweep,
    Override,
    Quote,
    QuotedString,
    RangeSweep,
)
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial

from fl_app.core.errors import explaining

Space: TypeAlias = dict[str, BaseDistribution]


def parse(words: Sequence[str]) -> Space:
    """The space that words describe, in their order; a later word replaces an earlier one.

    ``choice(a,b)`` is one of some values, ``interval(a,b)`` a number between two, ``range(a,b)`` a
    number of steps of 1. ``tag(log,interval(a,b))`` is drawn evenly on a logarithmic scale, and
    ``int(interval(a,b))`` is an integer. ``KEY=null`` leaves a key out.

    Raises:
        ValueError: a word is none of these.
    """
    space: Space = {}
    for word in words:
        with explaining(f"search.space: {word}"):
            override = OverridesParser.create().parse_override(word)
            if override.value() is None:
                space.pop(override.key_or_group, None)
            else:
                space[override.key_or_group] = _distribution(override)
    return space


def _distribution(override: Override) -> BaseDistribution:
    sweep: Any = override.value()
    kind = type(sweep)
    if kind is ChoiceSweep:
        values = [value.text if isinstance(value, QuotedString) else value for value in sweep.list]
        if all(isinstance(value, str | int | float) for value in values):
            return CategoricalDistribution(values)
    if kind is IntervalSweep and sweep.start < sweep.end < inf:
        numbers = IntDistribution if isinstance(sweep.start, int) else FloatDistribution
        return numbers(sweep.start, sweep.end, log="log" in sweep.tags)
    if kind is RangeSweep and all(isinstance(n, int) for n in (sweep.stop, sweep.step)):
        start, step = sweep.start or 0, sweep.step
        return IntDistribution(start, start + (sweep.stop - 1 - start) // step * step, step=step)
    raise ValueError(
        "it must be KEY=choice(...), KEY=interval(low,high), KEY=range(...) of integers, or "
        "KEY=tag(log,interval(...)): there is nothing to choose from"
    )


def grid(
    space: Mapping[str, BaseDistribution], points: int, configured: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The first trials: values of the first key, evenly spread over its range, ends included.

    Args:
        space: of a cell, not empty.
        points: values at most.
        configured: values of the cell's configuration. Other keys than the first have these, where
            they lie in their range.
    """
    key, distribution = next(iter(space.items()))
    others = {
        other: configured[other]
        for other, other_range in space.items()
        if other != key and _contains(other_range, configured.get(other))
    }
    return [{key: value, **others} for value in dict.fromkeys(_spread(distribution, points))]


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if not isinstance(value, int | float) or not distribution.low <= value <= distribution.high:
        return False
    return not distribution.step or (value - distribution.low) % distribution.step == 0


def _spread(first: BaseDistribution, points: int) -> list[Any]:
    if isinstance(first, CategoricalDistribution):
        return list(first.choices[:points])
    assert isinstance(first, FloatDistribution | IntDistribution)
    spaced = np.geomspace if first.log else np.linspace
    values = [float(value) for value in spaced(first.low, first.high, points)]
    if isinstance(first, IntDistribution):
        return [first.low + round((v - first.low) / first.step) * first.step for v in values]
    # Rounded to four digits. The ends stay as they are.
    return [v if v in (first.low, first.high) else float(f"{v:.4g}") for v in values]


def suggest(trial: Trial, key: str, distribution: BaseDistribution) -> Any:
    """The value of a key in a trial: that of the grid, or what the study's sampler draws."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(key, distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high, log = distribution.low, distribution.high, distribution.log
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(key, int(low), int(high), step=distribution.step, log=log)
    return trial.suggest_float(key, low, high, log=log)


def override(key: str, value: Any) -> str:
    """The override that sets a key."""
    text = QuotedString(value, Quote.single).with_quotes() if isinstance(value, str) else value
    return f"{key}={text}"
