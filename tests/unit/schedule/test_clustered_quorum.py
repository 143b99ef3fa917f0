"""EAFL's schedule: quorums of clusters, who is waited for, and when clusters are formed."""

import numpy as np
import pytest
from helpers import vec

from fl_app.core.pool import ClientPool
from fl_app.core.types import Update
from fl_app.schedule.clustered_quorum import ClusteredQuorum


def updates(*clients):
    return [Update(client_id, 0, vec(0, 0), "delta", 1, 0.0) for client_id in clients]


def start(schedule, idle, busy=(), buffer=()):
    return set(schedule.start(ClientPool(idle), busy, buffer, np.random.default_rng(0)))


def take(schedule, *clients):
    return [update.client_id for update in schedule.take(updates(*clients))]


def clustered(clusters, **settings):
    """After the first clusters were formed, everybody at work again."""
    schedule = ClusteredQuorum(num_clusters=1, **settings)
    start(schedule, clusters)
    schedule.regroup(clusters, updates(*clusters))
    start(schedule, clusters)
    start(schedule, [], busy=clusters)
    return schedule


# -- decisions, one at a time ---------------------------------------------------------------------


def test_the_first_clusters_need_an_upload_of_everybody():
    schedule = ClusteredQuorum(num_clusters=2)
    assert start(schedule, range(3)) == {0, 1, 2}
    assert not schedule.survey(0, updates(2, 0))
    assert take(schedule, 2, 0) == []
    everybody = updates(2, 0, 1)
    assert schedule.survey(0, everybody)
    assert take(schedule, 2, 0, 1) == []
    assert schedule.regroup({0: 0, 1: 1, 2: 0}, everybody) == everybody
    assert not schedule.survey(0, [])
    assert start(schedule, range(3)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("size", "participation", "quorum"),
    [(5, 0.1, 1), (14, 0.1, 1), (15, 0.1, 2), (7, 0.5, 4), (1, 0.2, 1), (4, 1.0, 4)],
)
def test_a_quorum_is_the_rounded_share_and_at_least_one(size, participation, quorum):
    """0.5, 1.4, 1.5, 3.5, 0.2 and 4."""
    schedule = clustered(dict.fromkeys(range(size), 0), participation=participation)
    assert take(schedule, *range(quorum - 1)) == []
    assert take(schedule, *range(size)) == [*range(quorum)]


TWO = {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1}  # of phi = 1/2: 2 and 1 are waited for


def test_all_clusters_are_waited_for_and_the_first_are_taken():
    schedule = clustered(TWO, participation=0.5)
    assert take(schedule, 3, 1, 0) == []
    assert take(schedule, 4, 5) == []
    assert take(schedule, 3, 5, 1, 4, 0) == [3, 5, 1]


def test_without_dsa_one_cluster_is_taken_at_a_time():
    schedule = clustered(TWO, participation=0.5, synchronous=False)
    assert take(schedule, 3) == []
    assert take(schedule, 3, 1) == [3, 1]
    assert take(schedule, 5) == [5]
    assert take(schedule, 5, 3, 1, 0, 2) == [3, 1]


def test_nobody_waits_for_who_left():
    """Three of the four in cluster 0 are there: round(1.5) = 2 still; then one: 1."""
    schedule = clustered(TWO, participation=0.5)
    start(schedule, [], busy=[0, 1, 2, 4, 5])
    assert take(schedule, 0, 4) == []
    start(schedule, [], busy=[0, 4, 5])
    assert take(schedule, 0, 4) == [0, 4]
    start(schedule, [], busy=[4, 5])
    assert take(schedule, 4) == [4]


def test_nobody_waits_for_who_brought_nothing():
    """Client 5 fails, is given another order, and delivers in the end; so does 4."""
    schedule = clustered({0: 0, 1: 0, 4: 1, 5: 2}, participation=1.0)
    assert start(schedule, [5], busy=[0, 1, 4]) == {5}
    assert take(schedule, 0, 1, 4) == [0, 1, 4]
    assert start(schedule, [0, 1, 4], busy=[5]) == {0, 1, 4}
    assert take(schedule, 5) == []
    assert take(schedule, 5, 0, 4, 1) == [5, 0, 4, 1]
    start(schedule, [0, 1, 4, 5])
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
    start(schedule, range(3))
    surveyed = []
    for version in range(15 if settings else 9):
        if schedule.survey(version, updates(0, 1, 2)):
            assert schedule.surveys
            dropped = schedule.regroup({0: 0, 1: 1, 2: 0}, updates(0, 1, 2))
            assert len(dropped) == (0 if surveyed else 3)
            surveyed.append(version)
            assert not schedule.survey(version, updates(0, 1, 2))
    assert surveyed == versions
    assert schedule.surveys == settings.get("recluster", True)
