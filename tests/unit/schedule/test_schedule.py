"""When clients start and updates are aggregated."""

import math
import re
from collections import Counter

import helpers
import numpy as np
import pytest
from helpers import Times, run, vec

from fl_app.core.pool import ClientPool
from fl_app.core.types import Update
from fl_app.engine.server import Server
from fl_app.schedule import Buffered, RandomK, RoundBlocking, k_async, synchronous
from fl_app.schedule.bounded_staleness import BoundedStaleness
from fl_app.schedule.clustered_quorum import ClusteredQuorum
from fl_app.schedule.guided import Guided
from fl_app.schedule.periodic import Periodic


def update(client_id):
    return Update(client_id, 0, vec(0, 0), "delta", 1, 0.0)


def start(schedule, idle, busy=(), buffer=(), seed=0, failing=()):
    schedule.observe((), failing)
    rng = np.random.default_rng(seed)
    return list(schedule.start(ClientPool(idle), busy, updates_of(*buffer), rng))


def take(schedule, *clients):
    """The clients of these whose updates the schedule takes."""
    return [update.client_id for update in schedule.take(updates_of(*clients))]


def updates_of(*clients):
    return [update(client_id) for client_id in clients]


# -- decisions, one at a time ---------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [Buffered(5, 3), k_async(3, 5), RandomK(3, 9, 0)])
def test_take_releases_exactly_k_however_many_wait(schedule):
    buffer = updates_of(*range(7))
    assert [len(schedule.take(buffer[:n])) for n in range(8)] == [0, 0, 0, 3, 3, 3, 3, 3]
    assert schedule.take(buffer) == buffer[:3]


def test_buffered_refills_at_once():
    """Clients whose updates wait in the buffer may start again."""
    schedule = Buffered(concurrency=4, buffer_size=3)
    assert len(start(schedule, range(10))) == 4
    assert start(schedule, [0, 1], busy=[2, 3, 4], buffer=[0, 1]) in ([0], [1])
    assert start(schedule, [0, 1], busy=[2, 3, 4, 5], buffer=[0, 1]) == []
    assert start(schedule, [], busy=[2], buffer=[]) == []


def test_a_round_replaces_whoever_failed():
    """0 works, 1 and 2 have reported, the fourth failed: a new client starts, not 1 or 2."""
    schedule = synchronous(4)
    clients = [start(schedule, [1, 2, 5], busy=[0], buffer=[1, 2], seed=seed) for seed in range(9)]
    assert clients == [[5]] * 9


def test_k_async_restarts_participants_after_the_aggregation():
    schedule = k_async(3)
    assert sorted(start(schedule, range(5))) == [0, 1, 2, 3, 4]
    assert start(schedule, [3, 1], busy=[0, 2, 4], buffer=[3, 1]) == []
    assert sorted(start(schedule, [3, 1, 4], busy=[0, 2])) == [1, 3, 4]


def test_round_blocking_takes_each_client_once_in_a_round():
    """Five clients, K = 2: 0 and 1, then 2 and 3 although 0 and 1 are back, then 4 alone."""
    schedule = RoundBlocking(2)
    assert start(schedule, range(5)) == [0, 1, 2, 3, 4]
    assert take(schedule, 0) == []
    assert take(schedule, 0, 1) == [0, 1]
    assert take(schedule, 0, 1, 2) == []
    assert take(schedule, 0, 1, 2, 3) == [2, 3]
    assert take(schedule, 0, 1) == []
    assert take(schedule, 0, 1, 4) == [4]
    # The round is over; the waiting updates begin the next.
    assert take(schedule, 0, 1) == [0, 1]
    assert take(schedule, 4) == []


def half_a_round():
    """A round of four clients, two of which have had their turn."""
    schedule = RoundBlocking(2)
    start(schedule, range(4))
    assert take(schedule, 0, 1) == [0, 1]
    return schedule


def test_a_round_does_not_wait_for_clients_that_left():
    """Of four clients 3 leaves before its turn: 2 is the last of the round."""
    schedule = half_a_round()
    start(schedule, [], busy=[0, 1, 2])
    assert take(schedule, 2) == [2]


def test_a_round_does_not_wait_for_failed_orders():
    """Of four clients 3 fails: 2 is the last of the round, and 3 has its turn when it reports."""
    schedule = half_a_round()
    assert start(schedule, [0, 1, 3], busy=[2], failing={3}) == [0, 1, 3]
    assert take(schedule, 0) == []
    assert take(schedule, 0, 2) == [2]
    # The next round has 0, 1 and 2, and 3 because its update has arrived.
    start(schedule, [0, 2], busy=[1, 3], buffer=[0], failing={3})
    assert take(schedule, 0) == []
    assert take(schedule, 0, 3) == [0, 3]
    start(schedule, [0, 3], busy=[1, 2])
    assert take(schedule, 1) == []
    assert take(schedule, 1, 2) == [1, 2]


# -- whole runs -----------------------------------------------------------------------------------


def test_random_k_is_k_distinct_clients_every_second():
    schedule = RandomK(buffer_size=3, num_clients=10, seed=1)
    result = run(schedule, devices=schedule, num_versions=200)
    for second, aggregate in enumerate(result.kind("aggregate"), start=1):
        assert aggregate["t"] == second
        assert len(set(aggregate["client"])) == 3
    counts = Counter(event["client"] for event in result.kind("arrival"))
    assert all(abs(count - 60) < 4 * (200 * 0.3 * 0.7) ** 0.5 for count in counts.values())


def test_random_k_skips_iterations_that_passed():
    """A client that starts late in an iteration waits for its next draw."""
    schedule = RandomK(2, 4, seed=0)
    draws = {c: [] for c in range(4)}
    for client_id, times in draws.items():
        now = 0.0
        while now < 50:
            now += schedule.parts(client_id, 0, now).seconds
            times.append(now)
    assert Counter(t for times in draws.values() for t in times if t <= 50) == Counter(
        {float(second): 2 for second in range(1, 51)}
    )
    # The draws are the same after calls for another client.
    late, now = RandomK(2, 4, seed=0), 0.0
    while now < 50:
        now += late.parts(0, 0, now).seconds
    after = draws[3][2] + 0.5
    assert after + late.parts(3, 0, after).seconds == draws[3][3]


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Buffered(4, 5), "buffer_size=5 must be between 1 and algorithm.schedule.concurre"),
        (lambda: RandomK(6, 5, 0), "buffer_size=6 must be between 1 and num_clients=5"),
        (lambda: RandomK(0, 5, 0), "buffer_size=0 must be between 1 and num_clients=5"),
        (lambda: BoundedStaleness().validate_population(4), "concurrency=10 must be at most num_"),
        (lambda: RoundBlocking(10).validate_population(9), "buffer_size=10 must be at most num_"),
        (lambda: Buffered(10, 5).validate_population(9), "concurrency=10 must be at most num_cl"),
        (lambda: RandomK(2, 5, 0).validate_population(9), "num_clients=5 must be num_clients=9"),
        (lambda: Periodic().validate_population(4), "concurrency=10 must be at most num_clients=4"),
        (lambda: ClusteredQuorum(participation=1.5), "participation=1.5 must be in (0, 1]"),
        (lambda: ClusteredQuorum(num_clusters=5).validate_population(4), "num_clusters=5 must be"),
    ],
)
def test_impossible_schedules(make, text):
    with pytest.raises(ValueError, match=f"^algorithm.schedule.{re.escape(text)}"):
        make()


def fails_three_times(client_id, sequence, received):
    """Client 2 fails in three orders."""
    if client_id == 2 and 1 <= sequence < 4:
        raise OSError("no power")
    return helpers.toward_own_number(client_id, sequence, received)


@pytest.mark.parametrize(
    ("schedule", "clients"),
    [
        (RoundBlocking(1), [[0], [1], [2], *[[0], [1]] * 4, [0]]),
        (
            ClusteredQuorum(num_clusters=1, participation=1.0, recluster=False),
            [*[[0, 1]] * 7, [2, 0, 1], *[[0, 1, 2]] * 4],
        ),
    ],
)
def test_a_failed_client_counts_again_after_its_next_update(schedule, clients):
    result = run(
        schedule,
        helpers.Scripted(fails_three_times),
        num_clients=3,
        num_versions=12,
        devices=Times(lambda client, number: 2.5 if client == 2 else 1.0 + 0.1 * client),
    )
    assert [event["client"] for event in result.kind("aggregate")] == clients


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # With two at a time the third waits for the tick after the first is back.
        (Periodic(period=5.0, burst=1, concurrency=2), [0, 5, 15, 20, 30]),
        (Periodic(period=10.0, burst=3, concurrency=4), [0, 0, 0, 10, 20]),
    ],
)
def test_clients_start_at_ticks_up_to_the_bound(schedule, expected):
    """Each order takes 12 s; clients are drawn at random."""
    devices = Times(lambda client, sequence: 12.0)
    result = run(schedule, num_clients=20, num_versions=8, devices=devices)
    assert [event["t"] for event in result.kind("dispatch")][:5] == expected
    assert len({event["client"] for event in result.kind("dispatch")}) > 4


def test_schedules_know_the_second_of_an_arrival_whatever_the_server_does():
    class Seen(Guided):
        def take(self, buffer):
            seconds.extend([self._now] * len(self.arrivals(buffer)))
            return buffer

    seconds = []
    server = Server(dispatch=0.3, receipt=0.1)
    devices = Times(lambda client, sequence: 1.0 + client)
    result = run(Seen(concurrency=3), num_clients=3, devices=devices, server=server)
    assert seconds == [event["t"] for event in result.kind("arrival")]


def test_a_tick_is_later_than_now_whatever_rounding_does():
    assert [Periodic().wake(now) for now in (0.0, 4.9, 5.0, 31.0)] == [5.0, 5.0, 10.0, 35.0]
    schedule, now = Periodic(period=0.1), 0.0
    for _ in range(10_000):
        later = schedule.wake(now)
        assert later > now
        now = later
    assert now == pytest.approx(1000.0)


class Epochs:
    """Records the number of epochs of each order."""

    def __init__(self):
        self.ordered = []

    def train(self, order):
        self.ordered.append((order.client_id, order.config.get("local_epochs")))
        return helpers.toward_own_number(order.client_id, order.sequence, order.vector)


@pytest.mark.parametrize(
    ("epochs", "deadline", "second"),
    [(10, math.inf, 10.0), (1, math.inf, 100.0), (1, 20.0, 20.0)],
    ids=["recalled", "waited_for", "lost"],
)
def test_the_server_waits_for_a_late_client_or_recalls_it(epochs, deadline, second):
    """Client 0 takes 100 s for ten epochs, and is recalled at the end of one of 10 s.

    The server does not wait for lost clients.
    """
    trainer = Epochs()
    result = run(
        BoundedStaleness(concurrency=4, buffer_size=2, staleness_bound=3),
        trainer,
        num_clients=4,
        num_versions=12,
        devices=Times(lambda client, _: 1.0 + client / 16 if client else 100.0),
        epochs=epochs,
        deadline=deadline,
    )
    assert result.outcome.version == 12
    assert max(result.history.ages) <= 3
    assert result.kind("aggregate")[3]["t"] == pytest.approx(second, abs=2.0)
    recalls = [event["client"] for event in result.kind("recall")]
    assert recalls[:1] == ([0] if epochs == 10 else [])
    assert ((0, 1) in trainer.ordered) == (epochs == 10)


# -- quorums of clusters ---------------------------------------------------------------------------


def quorum_start(schedule, idle, busy=(), failing=()):
    return set(start(schedule, idle, busy, failing=failing))


def make_clustered(clusters, **settings):
    """A schedule after the first clusters were formed, with all clients at work again."""
    schedule = ClusteredQuorum(num_clusters=1, **settings)
    quorum_start(schedule, clusters)
    schedule.regroup(clusters, updates_of(*clusters))
    quorum_start(schedule, clusters)
    quorum_start(schedule, [], busy=clusters)
    return schedule


# -- decisions, one at a time ---------------------------------------------------------------------


def test_the_first_clusters_need_an_upload_of_every_client():
    schedule = ClusteredQuorum(num_clusters=2)
    assert quorum_start(schedule, range(3)) == {0, 1, 2}
    assert not schedule.survey(0, updates_of(2, 0))
    assert take(schedule, 2, 0) == []
    everybody = updates_of(2, 0, 1)
    assert schedule.survey(0, everybody)
    assert take(schedule, 2, 0, 1) == []
    assert schedule.regroup({0: 0, 1: 1, 2: 0}, everybody) == everybody
    assert not schedule.survey(0, [])
    assert quorum_start(schedule, range(3)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("size", "participation", "quorum"),
    [(5, 0.1, 1), (14, 0.1, 1), (15, 0.1, 2), (7, 0.5, 4), (1, 0.2, 1), (4, 1.0, 4)],
)
def test_a_quorum_is_the_rounded_share_and_at_least_one(size, participation, quorum):
    """0.5, 1.4, 1.5, 3.5, 0.2 and 4."""
    schedule = make_clustered(dict.fromkeys(range(size), 0), participation=participation)
    assert take(schedule, *range(quorum - 1)) == []
    assert take(schedule, *range(size)) == [*range(quorum)]


TWO = {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1}  # with phi = 1/2 the quorums are 2 and 1


def test_all_clusters_are_waited_for_and_the_first_are_taken():
    schedule = make_clustered(TWO, participation=0.5)
    assert take(schedule, 3, 1, 0) == []
    assert take(schedule, 4, 5) == []
    assert take(schedule, 3, 5, 1, 4, 0) == [3, 5, 1]


def test_without_dsa_one_cluster_is_taken_at_a_time():
    schedule = make_clustered(TWO, participation=0.5, synchronous=False)
    assert take(schedule, 3) == []
    assert take(schedule, 3, 1) == [3, 1]
    assert take(schedule, 5) == [5]
    assert take(schedule, 5, 3, 1, 0, 2) == [3, 1]


def test_quorums_do_not_wait_for_clients_that_left():
    """Three of the four in cluster 0 are present: round(1.5) = 2 still; then one: 1."""
    schedule = make_clustered(TWO, participation=0.5)
    quorum_start(schedule, [], busy=[0, 1, 2, 4, 5])
    assert take(schedule, 0, 4) == []
    quorum_start(schedule, [], busy=[0, 4, 5])
    assert take(schedule, 0, 4) == [0, 4]
    quorum_start(schedule, [], busy=[4, 5])
    assert take(schedule, 4) == [4]


def test_quorums_do_not_wait_for_failed_orders():
    """Client 5 fails, gets another order, and delivers in the end; so does 4."""
    schedule = make_clustered({0: 0, 1: 0, 4: 1, 5: 2}, participation=1.0)
    assert quorum_start(schedule, [5], busy=[0, 1, 4], failing={5}) == {5}
    assert take(schedule, 0, 1, 4) == [0, 1, 4]
    assert quorum_start(schedule, [0, 1, 4], busy=[5], failing={5}) == {0, 1, 4}
    assert take(schedule, 5) == []
    assert take(schedule, 5, 0, 4, 1) == [5, 0, 4, 1]
    quorum_start(schedule, [0, 1, 4, 5])
    assert take(schedule, 0, 4, 1) == []


@pytest.mark.parametrize(
    ("settings", "versions"),
    [
        ({}, [0, 3, 6]),
        ({"synchronous": False}, [0, 6, 12]),  # two clusters make an iteration
        ({"recluster": False}, [0]),
    ],
)
def test_clusters_are_formed_every_so_many_iterations(settings, versions):
    schedule = ClusteredQuorum(num_clusters=2, recluster_every=3, **settings)
    quorum_start(schedule, range(3))
    surveys = []
    for version in range(15 if settings else 9):
        if schedule.survey(version, updates_of(0, 1, 2)):
            assert schedule.surveys
            dropped = schedule.regroup({0: 0, 1: 1, 2: 0}, updates_of(0, 1, 2))
            assert len(dropped) == (0 if surveys else 3)
            surveys.append(version)
            assert not schedule.survey(version, updates_of(0, 1, 2))
    assert surveys == versions
    assert schedule.surveys == settings.get("recluster", True)
