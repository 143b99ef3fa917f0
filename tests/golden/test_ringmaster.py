"""Ringmaster ASGD against hand-derived values (Maranjyan et al. 2025), eta = 1/2, R = 3.

w_5 = [1, 1], g = [2, 4]: age 2 is taken, w = [0, -1]; ages 3 and 4 are refused.
"""

import pytest
from helpers import Scripted, Times, run, vec

from fl_app.algorithms.ringmaster import Ringmaster
from fl_app.core.types import GlobalModel, Update, Upload
from fl_app.schedule import fully_async

MODEL = GlobalModel(vec(1, 1), 5)


def update(age: int) -> Update:
    return Update(0, 5 - age, vec(2, 4), "gradient", 10, 0.1)


def test_young_gradients_are_taken_and_old_ones_refused():
    strategy = Ringmaster(server_lr=0.5, delay_threshold=3)
    assert strategy.admit(MODEL, update(2)) is None
    assert strategy.aggregate(MODEL, [update(2)]).tolist() == [0, -1]
    for age in (3, 4):
        told = f"age={age} is not below strategy.delay_threshold=3"
        assert strategy.admit(MODEL, update(age)) == told


def test_several_at_once_make_a_step_along_their_sum():
    """[1, 1] - 1/2 2 [2, 4]."""
    strategy = Ringmaster(server_lr=0.5)
    assert strategy.aggregate(MODEL, [update(0), update(1)]).tolist() == [-1, -3]


@pytest.mark.parametrize(
    ("noise", "target", "threshold"), [(10.0, 4.0, 3), (8.0, 4.0, 2), (0.0, 1.0, 1)]
)
def test_the_threshold_follows_from_noise_and_target(noise, target, threshold):
    strategy = Ringmaster(delay_threshold=None, noise=noise, target=target)
    assert strategy.threshold == threshold


def test_a_slow_client_starts_anew_and_its_gradients_are_never_used():
    """Client 3 takes ten times as long as three others: its gradients are 27 versions old."""
    result = run(
        fully_async(4),
        Scripted(lambda client, number, received: Upload(vec(1, 1), "gradient", 1, loss=0.0)),
        num_clients=4,
        num_versions=100,
        devices=Times(lambda client, number: 10.0 if client == 3 else 1.0 + 0.01 * client),
        strategy=Ringmaster(delay_threshold=20),
    )
    assert {event["client"] for event in result.kind("reject")} == {3}
    assert all(client != 3 for event in result.kind("aggregate") for client in event["client"])
    assert len([e for e in result.kind("dispatch") if e["client"] == 3]) > 2


@pytest.mark.parametrize("settings", [{}, {"noise": 1.0}, {"target": 1.0}])
def test_without_a_threshold_both_are_needed(settings):
    with pytest.raises(
        ValueError, match=r"^algorithm\.strategy\.delay_threshold=None must be an integer"
    ):
        Ringmaster(delay_threshold=None, **settings)


@pytest.mark.parametrize("settings", [{"noise": 1.0}, {"target": 1.0}])
def test_a_threshold_that_would_have_no_effect_is_refused(settings):
    told = r"^algorithm\.strategy\.delay_threshold=50 must be null with"
    with pytest.raises(ValueError, match=told):
        Ringmaster(**settings)
