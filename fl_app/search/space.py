"""What a search tries: keys with the values that they may have."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    IntervalSweep,
    Override,
    OverrideType,
    Quote,
    QuotedString,
    RangeSweep,
    Sweep,
)
from hydra.errors import HydraException
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from fl_app.core.errors import is_number, require

Space: TypeAlias = dict[str, BaseDistribution]
Values: TypeAlias = dict[str, Any]  # one for each key of a space

ONE = "there is nothing to choose from"
# Texts that Hydra reads as they are; others need quotes.
_PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[a-z_][\w./-]*", re.IGNORECASE)


def parse(words: Sequence[str]) -> Space:
    """The space that words describe, in their order; a later word replaces an earlier one.

    ``choice(a,b)`` is one of some values, ``interval(a,b)`` a number between two, ``range(a,b)`` a
    number of steps of 1. ``tag(log,interval(a,b))`` is drawn evenly on a logarithmic scale, and
    ``int(interval(a,b))`` is an integer.

    Raises:
        ValueError: a word says nothing of the kind.
    """
    space: Space = {}
    for word in words:
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException as error:
            raise ValueError(f"search.space: {word}: {error}") from None
        space[override.key_or_group] = _distribution(override, word)
    return space


def words_of(text: str) -> list[str]:
    """The words of a text, as a shell splits them.

    Raises:
        ValueError: a quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"search.space={text} cannot be split into words: {error}") from None


def _distribution(override: Override, word: str) -> BaseDistribution:
    sweep = override.value()
    plain = override.type == OverrideType.CHANGE and override.package is None
    bound = "KEY=..., without +, ~ and @"
    require(plain, "search.space", word, bound, "a trial sets a key that the cell has")
    if isinstance(sweep, Sweep):
        known = {"log"} if isinstance(sweep, IntervalSweep) else set()
        bound = "without tags, except for tag(log,interval(...))"
        require(sweep.tags <= known, "search.space", word, bound, "it would have no effect")
    if isinstance(sweep, ChoiceSweep) and not sweep.shuffle:
        choices = [_plain(value) for value in sweep.list]
        plain = all(isinstance(each, str | int | float) for each in choices)
        plain = plain and all(is_number(e) for e in choices if isinstance(e, float))
        require(
            plain,
            "search.space",
            word,
            "a choice among finite numbers, texts, true and false",
            "a journal keeps nothing else",
        )
        several = len(set(map(repr, choices))) > 1
        require(several, "search.space", word, "a choice among two values or more", ONE)
        return CategoricalDistribution(choices)
    if isinstance(sweep, IntervalSweep):
        low, high, log = sweep.start, sweep.end, "log" in sweep.tags
        assert low is not None
        assert high is not None
        require(
            is_number(low) and is_number(high) and low < high,
            "search.space",
            word,
            "an interval between two finite numbers, the lower one first",
            ONE,
        )
        bound = "above 0 on a logarithmic scale"
        require(low > 0 or not log, "search.space", word, bound, "0 has no logarithm")
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=log)
        return FloatDistribution(float(low), float(high), log=log)
    if isinstance(sweep, RangeSweep):
        ends = (sweep.start or 0, sweep.stop, sweep.step)
        whole = [each for each in ends if isinstance(each, int)]
        bound = "a range of integers"
        require(len(whole) == 3, "search.space", word, bound, "for others there is interval(...)")
        low, high, step = whole
        ascending = step > 0 and low + step < high
        require(ascending, "search.space", word, "an ascending range of two values or more", ONE)
        return IntDistribution(low, low + (high - 1 - low) // step * step, step=step)
    raise ValueError(
        f"search.space: {word} must be KEY=choice(...), KEY=interval(...), KEY=range(...) or "
        f"KEY=tag(log,interval(...)): {ONE}"
    )


def _plain(value: Any) -> Any:
    return value.text if isinstance(value, QuotedString) else value


def grid(
    space: Mapping[str, BaseDistribution], points: int, configured: Mapping[str, Any]
) -> list[Values]:
    """The first trials: values of the first key, evenly spread over its range, ends included.

    Args:
        space: of a cell, not empty.
        points: values at most.
        configured: values of the cell's configuration. Other keys than the first have these, where
            they lie in their range.
    """
    key, first = next(iter(space.items()))
    others = {
        other: value
        for other, value in configured.items()
        if other != key and _holds(space[other], value)
    }
    return [{key: value, **others} for value in dict.fromkeys(_spread(first, points))]


def _holds(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and distribution._contains(value)


def _spread(first: BaseDistribution, points: int) -> list[Any]:
    if isinstance(first, CategoricalDistribution):
        return list(first.choices[:points])
    assert isinstance(first, FloatDistribution | IntDistribution)
    low, high = first.low, first.high
    shares = [0.5] if points == 1 else [i / (points - 1) for i in range(points)]
    values = [
        low * (high / low) ** share if first.log else low + (high - low) * share for share in shares
    ]
    if isinstance(first, IntDistribution):
        return [low + round((value - low) / first.step) * first.step for value in values]
    # As a person would write them, and within the range. The ends stay as they are given.
    rounded = [min(max(float(f"{value:.4g}"), low), high) for value in values]
    return rounded if points == 1 else [low, *rounded[1:-1], high]


def ends(distribution: BaseDistribution) -> list[Any]:
    """The two ends of a range, or all values of a choice."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return [distribution.low, distribution.high]


def at_edge(distribution: BaseDistribution, value: Any) -> bool:
    """Whether a value is an end of its range: a better one may lie beyond."""
    if isinstance(distribution, FloatDistribution | IntDistribution):
        return value in (distribution.low, distribution.high)
    return False


def override(key: str, value: Any) -> str:
    """The word that sets a key."""
    if value is None or isinstance(value, bool):
        return f"{key}={str(value).lower().replace('none', 'null')}"
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        value = QuotedString(value, Quote.single).with_quotes()
    return f"{key}={value}"
