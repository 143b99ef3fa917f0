"""Examples held out for testing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fl_app.tasks.held_out import held_out


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.floats(0, 0.99),
)
def test_the_share_holds_in_every_group_which_keeps_one(sizes: list[int], share: float) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    chosen = held_out(groups, share)
    total = sum(sizes)
    assert chosen.sum() == min(round(share * total), total - len(sizes))
    for group, size in enumerate(sizes):
        assert chosen[groups == group].sum() < size


def test_the_groups_have_equal_shares() -> None:
    groups = np.repeat([0, 1, 2], [1000, 100, 50])
    chosen = held_out(groups, 0.2)
    counts = np.bincount(groups[chosen])
    assert np.abs(counts - [200, 20, 10]).max() <= 1


def test_equal_arguments_give_equal_examples() -> None:
    groups = np.arange(50) % 3
    np.testing.assert_array_equal(held_out(groups, 0.3), held_out(groups, 0.3))


def test_what_a_group_has_once_is_for_training() -> None:
    assert not held_out(np.arange(4), 0.5).any()
    assert held_out(np.array([0, 1, 1, 1, 1]), 0.6).tolist()[0] is False
