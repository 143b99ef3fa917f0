"""Staleness functions against hand-derived values."""

import math

import pytest

from fl_app.core import staleness
from fl_app.core.rates import LinearDecay


def test_by_hand() -> None:
    """(3 + 1)^-0.5 = 1/2; (8 + 1)^-1 = 1/9; hinge of slope 10 from age 4: 1 / (10 (6 - 4) + 1)."""
    assert staleness.polynomial(3, 0.5) == 0.5
    assert staleness.polynomial(8, 1.0) == pytest.approx(1 / 9)
    assert staleness.hinge(6, 10.0, 4.0) == pytest.approx(1 / 21)
    assert staleness.constant(1000) == 1.0


@pytest.mark.parametrize(
    "function",
    [
        staleness.constant,
        lambda age: staleness.polynomial(age, 0.5),
        lambda age: staleness.hinge(age, 10.0, 4.0),
    ],
)
def test_one_when_fresh_and_never_growing(function) -> None:
    values = [function(age) for age in range(12)]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert values[-1] > 0


def test_hinge_is_continuous_where_it_bends() -> None:
    assert staleness.hinge(4, 10.0, 4.0) == 1.0
    assert staleness.hinge(5, 0.0, 4.0) == 1.0


def test_exponential_falls_by_half_every_226_hundredths() -> None:
    """(e/2)^-1 = 2/e; ln 2 / ln(e/2) = 0.693147 / 0.306853 = 2.258891."""
    assert staleness.exponential(1) == pytest.approx(2 / math.e)
    assert staleness.exponential(2.258891) == pytest.approx(0.5, rel=1e-6)


def test_freshness_by_hand() -> None:
    """Ages 3 and 4: 1 and 2/e, over their sum."""
    assert staleness.freshness([3, 4]) == pytest.approx([1 / (1 + 2 / math.e), 2 / (math.e + 2)])


def test_freshness_of_ages_whose_weights_no_float_could_hold() -> None:
    assert staleness.exponential(5000) == 0
    assert staleness.freshness([5000, 5001]) == pytest.approx(staleness.freshness([0, 1]))
    assert staleness.freshness([0, 5000]).tolist() == [1, 0]


def test_linear_decay_by_hand() -> None:
    """From 1 to 0.2 over 4 versions: 0.2 less each, and no less after the last."""
    decay = LinearDecay(to=0.2, versions=4)
    assert [decay.factor(v) for v in range(6)] == pytest.approx([1, 0.8, 0.6, 0.4, 0.2, 0.2])


@pytest.mark.parametrize(
    ("to", "versions", "text"),
    [
        (1.5, 10, r"to=1.5 must be in \[0, 1\]"),
        (-0.1, 10, "to=-0.1 must be"),
        (0.5, 0, "versions=0 must be an integer >= 1"),
    ],
)
def test_refused(to: float, versions: int, text: str) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.strategy\.lr_schedule\.{text}"):
        LinearDecay(to, versions)
