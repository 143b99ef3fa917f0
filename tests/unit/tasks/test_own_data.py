"""The test set of a user's data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.tasks.own_data import choose_test


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.floats(0, 0.99))
def test_the_share_holds_in_every_group_which_keeps_one(sizes: list[int], share: float) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    total = sum(sizes)
    expected = min(round(share * total), total - len(sizes))
    if share and not expected:
        with pytest.raises(ValueError, match=f"too few for a test set of task.test_share={share}"):
            choose_test(groups, share, "a.csv")
        return
    chosen = choose_test(groups, share, "a.csv")
    assert chosen.sum() == expected
    for group, size in enumerate(sizes):
        assert chosen[groups == group].sum() < size
    np.testing.assert_array_equal(chosen, choose_test(groups, share, "a.csv"))


def test_the_groups_have_equal_shares() -> None:
    groups = np.repeat([0, 1, 2], [1000, 100, 50])
    counts = np.bincount(groups[choose_test(groups, 0.2, "a.csv")])
    assert np.abs(counts - [200, 20, 10]).max() <= 1
