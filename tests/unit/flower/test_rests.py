"""How long clients rest that fail again and again."""

from fl_app.flower.rests import LONGEST, Rests


def test_rests_double_from_the_second_failure_in_a_row() -> None:
    rests = Rests(first=5.0)
    assert [rests.fail(0, {1, 2}) for _ in range(5)] == [0.0, 5.0, 10.0, 20.0, 40.0]
    assert [rests.fail(0, {1, 2}) for _ in range(100)][-1] == LONGEST
    rests.forget(0)
    assert rests.fail(0, {1, 2}) == 0.0


def test_nobody_rests_if_all_fail() -> None:
    """The run then ends as stalled, with the reason, instead of waiting through rests."""
    rests = Rests(first=5.0)
    assert rests.fail(0, {1}) == rests.fail(1, {0}) == 0.0
    assert rests.fail(0, {1}) == rests.fail(1, {0}) == 0.0
    assert rests.fail(0, ()) == 0.0
    rests.forget(1)
    assert rests.fail(0, {1}) > 0.0
