"""ACE and ACED against hand-derived values (Chang et al. 2025), N = 4, eta = 1, w = 0 each time.

version t   client: gradient, base version    ACE: mean of all heard      ACED, max_age = 2
0           0: [4, 0], 0                      [4, 0]                      [4, 0]
1           1: [0, 8], 1                      [4, 8] / 2 = [2, 4]         [2, 4]
2           0: [2, 0], 2                      [2, 8] / 2 = [1, 4]         [1, 4]
4           2: [6, 6], 1 (age 3)              [8, 14] / 3                 only 0 counts: [2, 0]
5           3: [1, 1], 2 (age 3)              [9, 15] / 4                 nobody: refused
5           1: [0, 4], 5                      [9, 11] / 4                 only 1 counts: [0, 4]
"""

import numpy as np
import pytest
from helpers import Scripted, Times, run, vec

from fl_app.algorithms.ace import ACE
from fl_app.core.types import GlobalModel, Update, Upload
from fl_app.schedule import fully_async

SCRIPT = [
    (0, 0, [4, 0], 0),
    (1, 1, [0, 8], 1),
    (2, 0, [2, 0], 2),
    (4, 2, [6, 6], 1),
    (5, 3, [1, 1], 2),
    (5, 1, [0, 4], 5),
]
ALL = [[4, 0], [2, 4], [1, 4], [8 / 3, 14 / 3], [9 / 4, 15 / 4], [9 / 4, 11 / 4]]
YOUNG = [[4, 0], [2, 4], [1, 4], [2, 0], None, [0, 4]]


def steps(strategy: ACE) -> list[list[float] | None]:
    moved: list[list[float] | None] = []
    for version, client, gradient, base in SCRIPT:
        model = GlobalModel(vec(0, 0), version)
        update = Update(client, base, vec(*gradient), "pseudo", 10, 0.1)
        if strategy.admit(model, update):
            moved.append(None)
        else:
            moved.append((-strategy.aggregate(model, [update])).tolist())
    return moved


@pytest.mark.parametrize(("max_age", "expected"), [(None, ALL), (100, ALL), (2, YOUNG)])
def test_steps_go_along_the_mean_of_what_counts(max_age, expected):
    for one, other in zip(steps(ACE(max_age=max_age, num_clients=4)), expected, strict=True):
        assert one == (None if other is None else pytest.approx(other, rel=1e-6))


def test_over_all_divides_by_everybody():
    """N = 4: [4, 0] / 4, then [4, 8] / 4."""
    assert steps(ACE(over="all", num_clients=4))[:2] == [[1, 0], [1, 2]]


def test_an_arrival_of_the_greatest_age_is_accepted_and_an_older_one_has_no_weight():
    strategy = ACE(max_age=1, over="all", num_clients=2)
    model = GlobalModel(vec(0), 3)
    assert strategy.admit(model, Update(0, 2, vec(4), "pseudo", 10, 0.1)) is None
    assert strategy.aggregate(model, [Update(0, 2, vec(4), "pseudo", 10, 0.1)]).tolist() == [-2]
    assert strategy.report["weight"] == [1 / 2]
    assert "effective_clients" not in strategy.report  # the mean is over memories
    strategy.aggregate(model, [Update(1, 0, vec(9), "pseudo", 10, 0.1)])
    assert strategy.report["weight"] == [0]


def test_who_is_refused_is_told():
    strategy = ACE(max_age=2)
    old = Update(3, 2, vec(1, 1), "pseudo", 10, 0.1)
    assert strategy.admit(GlobalModel(vec(0, 0), 5), old) == (
        "age=3 is above strategy.max_age=2, and no client has a younger gradient"
    )


def test_of_two_updates_of_a_client_the_later_one_counts():
    updates = [Update(0, 0, vec(g), "pseudo", 10, 0.1) for g in (8, 2)]
    updates.append(Update(1, 0, vec(4), "pseudo", 10, 0.1))
    strategy = ACE()
    moved = strategy.aggregate(GlobalModel(vec(0), 0), updates)
    np.testing.assert_allclose(moved, [-3])
    assert strategy.report["weight"] == [0, 0.5, 0.5]


def test_a_version_that_nobody_counts_for_repeats_its_predecessor():
    strategy = ACE(max_age=1)
    old = Update(0, 0, vec(8), "pseudo", 10, 0.1)
    assert strategy.aggregate(GlobalModel(vec(5), 9), [old]).tolist() == [5]


def test_buffers_take_the_mean_of_the_uploads():
    strategy = ACE()
    model = GlobalModel(vec(0, 0), 0, num_trainable=1)
    strategy.aggregate(model, [Update(0, 0, vec(8, 8), "pseudo", 1, 0.1)])
    moved = strategy.aggregate(model, [Update(1, 0, vec(2, 2), "pseudo", 1, 0.1)])
    np.testing.assert_allclose(moved, [-5, -2])


def test_no_version_is_made_while_nobody_counts():
    """max_age = 0, two clients at work: after the first version the other client is too old."""
    result = run(
        fully_async(2),
        Scripted(lambda client, number, received: Upload(vec(1, 1), "pseudo", 1, loss=0.0)),
        num_clients=2,
        num_versions=4,
        devices=Times(lambda client, number: 1.0 + 0.1 * client),
        strategy=ACE(max_age=0),
    )
    refused = result.kind("reject")
    assert refused
    assert all("no client has a younger gradient" in event["reason"] for event in refused)
    assert all(event["age"] == [0] for event in result.kind("aggregate"))
