"""Hyper-parameters as dataclass fields, with default, bound and consequence of a violation."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, ClassVar, Protocol

from fl_app.core.errors import is_number, require


@dataclass(frozen=True)
class Bound:
    """What a value must be: `text` describes it, and `holds` tests a value."""

    text: str
    holds: Callable[[Any], bool]

    def check(self, key: str, value: object, consequence: str) -> None:
        """Refuse a value that violates the bound.

        Raises:
            ValueError: naming key, value, bound and consequence.
        """
        require(self.holds(value), key, value, self.text, consequence)


SWITCH = Bound("true or false", lambda value: isinstance(value, bool))
POSITIVE = Bound("a finite number above 0", lambda value: is_number(value) and value > 0)


def at_least(minimum: float) -> Bound:
    """A finite number >= `minimum`."""
    text = f"a finite number >= {minimum:g}"
    return Bound(text, lambda value: is_number(value) and value >= minimum)


def count(minimum: int = 1) -> Bound:
    """A whole number >= `minimum`."""
    return Bound(
        f"an integer >= {minimum}",
        lambda value: isinstance(value, Integral) and is_number(value) and int(value) >= minimum,
    )


def within(interval: str) -> Bound:
    """A number in an interval such as ``"(0, 1]"``."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = operator.gt if interval[0] == "(" else operator.ge
    below = operator.lt if interval[-1] == ")" else operator.le
    return Bound(
        f"in {interval}",
        lambda value: is_number(value) and above(value, low) and below(value, high),
    )


NON_NEGATIVE = at_least(0)
COUNT = count()
SEED = Bound("an integer >= 0 and < 2^63", lambda value: count(0).holds(value) and value < 2**63)
SHARE = within("(0, 1]")
UNIT_INTERVAL = within("[0, 1]")
BELOW_1 = within("[0, 1)")


def several(text: str, holds: Callable[[Any], bool]) -> Bound:
    """A list of one or more values, for each of which `holds` is true."""

    def fits(values: Any) -> bool:
        is_list = isinstance(values, Sequence) and not isinstance(values, str)
        return is_list and len(values) > 0 and all(map(holds, values))

    return Bound(text, fits)


SHARES = several("a list of numbers in (0, 1] such as [1, 0.5]", SHARE.holds)
PATTERNS = several("a list of patterns such as [head.*]", lambda each: isinstance(each, str))


def one_of(*names: str) -> Bound:
    """One of these words."""
    text = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return Bound(text, lambda value: value in names)


def or_none(bound: Bound) -> Bound:
    """`bound`, or None."""
    return Bound(f"{bound.text} or null", lambda value: value is None or bound.holds(value))


def or_auto(bound: Bound) -> Bound:
    """`bound`, or the word auto."""
    return Bound(f"auto or {bound.text}", lambda value: value == "auto" or bound.holds(value))


def bounded(default: Any, bound: Bound, consequence: str) -> Any:
    """A dataclass field that `Checked` checks.

    Args:
        default: of the field.
        bound: what the value must be; if the default is None, None is allowed, too.
        consequence: of a violation, for the error's message.
    """
    if default is None and not bound.holds(None):
        bound = or_none(bound)
    return field(default=default, metadata={"bound": bound, "consequence": consequence})


class Checked(Protocol):
    """The base of dataclasses whose fields are keys of the configuration.

    Raises:
        ValueError: a `bounded` field is out of its bounds; it names key (``group.field``), value,
            bound and consequence.
    """

    _group: ClassVar[str]  # of the keys

    def __post_init__(self) -> None:
        for declared in fields(self):  # type: ignore[arg-type]  # any dataclass
            if bound := declared.metadata.get("bound"):
                fits = bound.holds(getattr(self, declared.name))
                self._require(fits, declared.name, bound.text, declared.metadata["consequence"])

    def _require(self, fits: bool, key: str, bound: str, consequence: str) -> None:
        """Refuse the value of the field `key`; see `fl_app.core.errors.require`."""
        require(fits, f"{self._group}.{key}".lstrip("."), getattr(self, key), bound, consequence)
