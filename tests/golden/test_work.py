"""Schedules that measure out work or select clients, on fleets whose arrivals follow by hand.

Compass, Q_min = 2, Q_max = 10, lambda = 1.5, momentum 1; a step takes A 1, B 1.9, C 6 s. First
orders have 10 steps and make versions alone: A at 10, B at 19, C at 60. (T, L) of a group:

    10    A founds 1: 10 steps, (20, 25)
    19    B: 1 s are no 2 steps; founds 2: (25 + 10 - 19) / 1.9 = 8.4, 8 steps, (34.2, 41.8)
    20    A is there, 1 is complete. 14.2 s are too many steps for 2, and so are
          (41.8 + 19 - 20) / 1; A founds 3: 10 steps, (30, 35)
    30    A. 4.2 s: 4 steps, in 2; there at 34, and waits
    34.2  B, 2 is complete. A first: no group, 10 steps, (44.2, 49.2); B: 10 / 1.9, 5 steps, at 43.7
    44.2  both, likewise; again at 54.2; (64.2, 69.2)
    60    C: 4.2 s are no 2 steps; founds one: (69.2 + 10 - 60) / 6 = 3.2, 3 steps, (78, 87)
    64.2  B and A. A: 13.8 s are too many steps, (87 + 60 - 64.2) / 1 too; 10 steps, at 74.2.
          B: 13.8 / 1.9 = 7.3 with C, 10 / 1.9 = 5.3 with A: 7 steps, at 77.5
    74.2  A. 3.8 s: 3 steps with C, at 77.2
    78    C, A, B

Guided, two clients of 4 and 10 s, C = b = 2; T of client 1 is taken as client 0's until 10:

    4, 8  client 0: 4 / 2 = 2 seconds have passed
    10    client 1, of age 2: 4 / 2 s have passed since 8
    12    client 0, of age 1, waits: 10 / 2 s after 10 are at 15; from 19 it waits again
    20    client 1 is there, and nobody is at work

QueueAware, T = 10, epsilon = 0.2, alpha = 0.1, theta = 1, H_0 = 2, q 2 at first, no smoothing; a
step takes A 1 s, B 3 s; both wait 2 s, B's third order 5 s (or 6.5 s):

    8     both, of 2 steps each; then A (10 - 2 - 1) / 1 = 7 steps, B 7 / 3 = 2 at A's rate 2/7
    17    A, and B of 16
    28    A of 26; B, which waited 5 s and not 2 + 1, has to wait for the next round. Or, as B takes
          until 29.5, A alone at 17 + 12 = 29
    37    (38) A, and B of age 1
"""

from dataclasses import replace

import numpy as np
import pytest
from helpers import MeanDelta, Times, run, sent, vec

from fl_app.algorithms.fedavg import FedAvg
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.fedcompass import FedCompass
from fl_app.algorithms.fedqueue import FedQueue
from fl_app.core.pool import ClientPool
from fl_app.core.snapshot import dumps, loads
from fl_app.core.types import GlobalModel, Parts
from fl_app.schedule.compass import Compass
from fl_app.schedule.guided import Guided, outliers
from fl_app.schedule.queue_aware import QueueAware

PACE = (1.0, 1.9, 6.0)  # seconds of a step; simulated clients have one step of their own
SMALL = {"min_steps": 2, "max_steps": 10, "speed_momentum": 1.0}


class Again:
    """A schedule that goes on from its own checkpoint before every question."""

    def __init__(self, make):
        self.make, self.kept = make, make().state_dict()

    def __getattr__(self, name):
        schedule = self.make()
        schedule.load_state_dict(loads(dumps(self.kept)))
        found = getattr(schedule, name)
        if not callable(found) or name == "state_dict":
            return found

        def ask(*args):
            answer = found(*args)
            self.kept = schedule.state_dict()
            return answer

        return ask


def versions(schedule, seconds, num_versions, **more):
    """Of every version when it was made, and of whom."""
    ran = run(
        schedule,
        num_clients=more.pop("num_clients", len(PACE)),
        num_versions=num_versions,
        devices=more.pop("devices", None) or Times(seconds),
        strategy=MeanDelta(),
        steps=more.pop("steps", lambda client_id: 1),
        **more,
    )
    made = [event for event in ran.events if event["kind"] == "aggregate"]
    assert [len(event["client"]) for event in made] == [len(event["age"]) for event in made]
    return [(round(e["t"], 6), sorted(e["client"]), e["age"]) for e in made]


COURSE = [
    *((10, [0]), (19, [1]), (20, [0]), (30, [0]), (34.2, [0, 1]), (44.2, [0, 1]), (54.2, [0, 1])),
    *((60, [2]), (64.2, [0, 1]), (74.2, [0]), (78, [0, 1, 2])),
]


@pytest.mark.parametrize("keep", [lambda make: make(), Again], ids=["straight", "resumed"])
def test_groups_of_clients_arrive_together(keep):
    found = versions(keep(lambda: Compass(**SMALL)), lambda client, _: PACE[client], len(COURSE))
    assert [each[:2] for each in found] == COURSE


def test_a_late_update_joins_the_next_group_and_its_client_begins_at_once():
    """B's second order takes four times as long, until 79.8: at 41.8 the group goes without it."""

    def seconds(client, sequence):
        return PACE[client] * (4 if (client, sequence) == (1, 1) else 1)

    found = versions(Compass(**SMALL), seconds, 13)
    assert found[:5] == [(10, [0], [0]), (19, [1], [1]), (20, [0], [1]), (30, [0], [0]),
                         (41.8, [0], [0])]  # fmt: skip
    ages = {clock: age for clock, clients, age in found if clock > 79.8 and 1 in clients}
    # It began at version 2, and comes with the first group after 79.8.
    assert max(next(iter(ages.values()))) > 5


def test_equally_fast_clients_are_one_group_and_the_step_is_fedbuffs():
    found = versions(Compass(**SMALL), lambda *_: 0.1, 7, num_clients=4)
    assert [len(clients) for _, clients, _ in found] == [1, 1, 1, 1, 4, 4, 4]
    assert [age for _, _, age in found[5:]] == [[0] * 4] * 2
    model = GlobalModel(vec(0, 0), version=3, history={1: vec(0, 0), 3: vec(0, 0)})
    updates = [sent(0, 3, 4, 0, kind="delta"), sent(1, 1, 0, 8, kind="delta")]
    ours = FedCompass(num_clients=2).aggregate(model, updates)
    np.testing.assert_allclose(ours, FedBuff(server_lr=0.9).aggregate(model, updates))
    # 0.9 / 4 (4, 0) + 0.9 / 4 3^(-1/2) (0, 8)
    alone = FedCompass(num_clients=4).aggregate(model, updates)
    np.testing.assert_allclose(alone, [0.9, 1.8 / 3**0.5], rtol=1e-6)


@pytest.mark.parametrize("keep", [lambda make: make(), Again], ids=["straight", "resumed"])
def test_the_buffer_is_aggregated_at_the_pace_of_the_slowest_at_work(keep):
    schedule = keep(lambda: Guided(concurrency=2))
    found = versions(schedule, lambda client, _: (4, 10)[client], 5, num_clients=2)
    assert [each[:2] for each in found] == [
        *((4, [0]), (8, [0]), (10, [1]), (15, [0]), (20, [0, 1])),
    ]
    assert [each[2] for each in found] == [[0], [0], [2], [1], [0, 1]]


class Queued:
    """Waits of 2 seconds, but for client 1's third."""

    def __init__(self, third):
        self.third = third

    def parts(self, client_id, sequence, now):
        wait = self.third if (client_id, sequence) == (1, 2) else 2.0
        return Parts(wait, (1.0, 3.0)[client_id], 0.0)


@pytest.mark.parametrize("keep", [lambda make: make(), Again], ids=["straight", "resumed"])
@pytest.mark.parametrize(("third", "ends"), [(5.0, (28, 37)), (6.5, (29, 38))])
def test_a_round_has_the_work_that_queues_leave_and_late_updates_wait_for_the_next(
    keep, third, ends
):
    devices = Queued(third)

    def make():
        smooth = {"queue_smoothing": 1.0, "pace_smoothing": 1.0}
        schedule = QueueAware(10.0, 0.2, 0.1, 1.0, **smooth, warm_up_steps=2)
        schedule.settle(devices.parts, lambda *_: None)
        return schedule

    schedule = keep(make)
    found = versions(schedule, None, 4, num_clients=2, devices=devices)
    assert found[:2] == [(8, [0, 1], [0, 0]), (17, [0, 1], [0, 0])]
    assert found[2] == (ends[0], [0], [0])
    assert (found[3][:2], sorted(found[3][2])) == ((ends[1], [0, 1]), [0, 1])
    assert schedule.work(0) == {"local_steps": 7, "local_lr_factor": pytest.approx(2 / 7)}


def test_queues_are_smoothed_and_may_be_reported_by_clients():
    """q = (6 + 2) / 2 = 4, c = (26 - 6) / 20 = 1, then (3600 - 4 - 60) / 1 steps."""
    told = {"metrics": {"queue_seconds": 6.0}, "seconds": 26.0, "steps": 20}
    schedule = aggregated(QueueAware(), sent(0, 0, 1, order=0, **told), version=1)
    assert schedule.start(ClientPool([0]), (), [], np.random.default_rng(0)) == [0]
    assert schedule.work(0) == {"local_steps": 3536, "local_lr_factor": 1.0}


def test_fedqueues_weights_are_steps_over_age_and_equal_ones_are_fedavgs():
    """7 steps of age 0 and 2 of age 1: 7 and 2 / (1 + 1), so 7/8 and 1/8."""
    model = GlobalModel(vec(0, 0), version=3, history={2: vec(0, 0), 3: vec(0, 0)})
    fresh, stale = (sent(i, 3 - i, 8, 8 * i, kind="model", steps=(7, 2)[i]) for i in (0, 1))
    assert FedQueue(staleness_rate=1.0).aggregate(model, [fresh, stale]).tolist() == [8, 1]
    equal = [replace(each, steps=4) for each in (fresh, stale)]
    found = FedQueue().aggregate(model, equal)
    assert found.tolist() == FedAvg().aggregate(model, equal).tolist() == [8, 4]


def aggregated(schedule, *updates, version):
    """The schedule after a version of these updates, of clients that began at second 0."""
    schedule.wake(0.0)
    schedule.start(ClientPool(u.client_id for u in updates), (), [], np.random.default_rng(0))
    assert list(schedule.take(updates)) == list(updates)
    schedule.recall({}, version)
    return schedule


@pytest.mark.parametrize(("exponent", "best"), [(1.0, 0), (0.0, 1)])
def test_a_place_goes_to_the_client_of_the_highest_loss_over_staleness(exponent, best):
    """10 x 2 of age 0; 10 x 3.5 of age 1, which halves it at an exponent of 1."""
    schedule = Guided(concurrency=2, exploration=0.0, least_exploration=0.0, exponent=exponent)
    fresh = sent(0, 1, 1, loss=2.0, order=0, seconds=1.0)
    stale = sent(1, 0, 1, loss=3.5, order=1, seconds=1.0)
    aggregated(schedule, fresh, stale, version=2)
    idle, rng = ClientPool([0, 1, 2]), np.random.default_rng(0)
    assert schedule.start(idle, [9], [], rng) == [best]
    # Always explored: a client whose loss is unknown comes first, and e falls to its least.
    schedule = aggregated(Guided(concurrency=2, exploration=1.0), fresh, stale, version=2)
    assert schedule.start(idle, [9], [], rng) == [2]
    assert schedule.state_dict()["_exploring"] == pytest.approx(0.98**2)


def test_a_client_whose_loss_stands_apart_five_times_is_left_out():
    """Once in the first version, when the fourth has come; with each arrival of the second."""
    assert outliers(np.array([1.0, 1.2, 1.1, 9.0]), 0.5, 2).tolist() == [False] * 3 + [True]
    schedule, idle = Guided(concurrency=4, robust=True), ClientPool(range(4))
    for base, left in ((0, 4), (1, 3)):
        losses = enumerate((1.0, 1.1, 1.2, 9.0))
        updates = [sent(i, base, 1, loss=x, order=4 * base + i, seconds=1.0) for i, x in losses]
        aggregated(schedule, *updates, version=base + 1)
        assert len(schedule.start(idle, (), [], np.random.default_rng(0))) == left


def test_bounds_of_two_keys():
    with pytest.raises(ValueError, match=r"max_steps=3 must be at least .*min_steps=4"):
        Compass(4, 3)
    with pytest.raises(ValueError, match=r"least_exploration=0.3 must be at most .*=0.1"):
        Guided(exploration=0.1)
