"""Each client is one owner."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.tasks.partition import Indices, Natural, make_partition


def partition(owners: Indices, num_clients: int, seed: int, min_size: int = 1) -> list[Indices]:
    labels = np.zeros(owners.size, np.int64)
    return make_partition(Natural(min_size), labels, num_clients, seed, owners=owners)


@settings(max_examples=50, deadline=None)
@given(st.data(), st.integers(0, 2**32))
def test_a_client_has_all_of_one_owner(data: st.DataObject, seed: int) -> None:
    owners = np.array(data.draw(st.lists(st.integers(-5, 5), min_size=1, max_size=60)))
    num_clients = data.draw(st.integers(1, np.unique(owners).size))
    parts = partition(owners, num_clients, seed)
    ids = []
    for own in parts:
        (owner,) = set(owners[own].tolist())
        assert own.tolist() == np.flatnonzero(owners == owner).tolist()
        ids.append(owner)
    assert ids == sorted(set(ids))
    again = partition(owners, num_clients, seed)
    assert [own.tolist() for own in parts] == [own.tolist() for own in again]


def test_the_choice_of_owners_is_random() -> None:
    owners = np.arange(300) % 30
    assert [p.tolist() for p in partition(owners, 5, 0)] != [
        p.tolist() for p in partition(owners, 5, 1)
    ]


def test_small_owners_are_left_out() -> None:
    owners = np.array([1, 2, 2, 3, 3, 3])
    assert [own.tolist() for own in partition(owners, 2, 0, min_size=2)] == [[1, 2], [3, 4, 5]]
    with pytest.raises(
        ValueError, match=r"num_clients=3 must be at most 2, the owners of at least"
    ):
        partition(owners, 3, 0, min_size=2)


def test_data_without_owners_are_refused() -> None:
    with pytest.raises(ValueError, match=r"partition=Natural\(min_size=1\) needs the owner"):
        make_partition(Natural(), np.zeros(5, np.int64), 2, 0)
    with pytest.raises(ValueError, match=r"partition\.min_size=0"):
        Natural(0)
