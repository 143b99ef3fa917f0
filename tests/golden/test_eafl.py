"""EAFL against hand-derived values: w_t = [1, 1], eta = 1.

client             0       1       2       3       4
clustering g_i     [2, 0]  [1, 0]  [9, 1]  [0, 1]  [0, 3]
examples           10      20      30      20      20
cluster            0       0       0       1       1        |D_0| = 60, |D_1| = 40, |D| = 100

V_0 = {0, 1} and V_1 = {3} report

client             0       1       3
g_i                [5, 0]  [0, 5]  [10, 10]
age                0       1       3
tau = age + 1      1       2       4
|D_i| / sum_V      1/3     2/3     1
p_i                .6/3    .4/2    .4/4     = .2  .2  .1

w_{t+1} = [1, 1] - [.2 5 + .1 10, .2 5 + .1 10] = [-1, -1]
"""

import numpy as np
import pytest
from helpers import Scripted, Times, run, vec

from fl_app.algorithms.afl import AFL
from fl_app.algorithms.eafl import EAFL
from fl_app.algorithms.safl import SAFL
from fl_app.core.types import GlobalModel, Update, Upload
from fl_app.schedule import k_async, synchronous

MODEL = GlobalModel(vec(1, 1), version=3)
EXAMPLES = [10, 20, 30, 20, 20, 1]
SURVEY = [vec(2, 0), vec(1, 0), vec(9, 1), vec(0, 1), vec(0, 3)]


def gradient(client_id, vector, age=0):
    return Update(client_id, 3 - age, vector, "gradient", EXAMPLES[client_id], 0.1)


REPORTED = [gradient(0, vec(5, 0)), gradient(1, vec(0, 5), 1), gradient(3, vec(10, 10), 3)]


def make_eafl(**settings):
    eafl = EAFL(server_lr=1, num_clusters=2, **settings)
    eafl.cluster(MODEL, [gradient(i, vector) for i, vector in enumerate(SURVEY)])
    return eafl


def clusters(directions, num_clusters=2, model=MODEL):
    survey = [gradient(client_id, vector) for client_id, vector in enumerate(directions)]
    return EAFL(num_clusters=num_clusters).cluster(model, survey)


def test_like_directions_are_clustered_the_largest_cluster_first():
    a, b, c = vec(1, 0), vec(0, 1), vec(-1, 0)
    assert [*clusters([c, b, b, a, c, b], 3).values()] == [1, 0, 0, 2, 1, 0]


def test_a_step_weighs_by_staleness_within_and_by_data_between_clusters():
    eafl = make_eafl()
    np.testing.assert_allclose(eafl.aggregate(MODEL, REPORTED), [-1, -1], atol=1e-6)
    assert eafl.report["weight"] == pytest.approx([0.2, 0.2, 0.1])
    assert eafl.report["cluster_sizes"] == [3, 2]
    assert eafl.report["quorums"] == [2, 1]
    # Lengths 5, 5 and 14.14 and their weights sum to 0.5; the sum is [2, 2].
    mean = (5 + 5 + 200**0.5) / 3 * 0.5
    assert eafl.report["effective_clients"] == pytest.approx(mean**2 / 8)


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        # tau = 1
        ({"staleness": False}, [0.2, 0.4, 0.4]),
        # 10/1 and 20/2 are equal
        ({"normalise": True}, [0.3, 0.3, 0.4]),
    ],
)
def test_variants(settings, weights):
    eafl = make_eafl(**settings)
    eafl.aggregate(MODEL, REPORTED)
    assert eafl.report["weight"] == pytest.approx(weights)
    fresh = [gradient(update.client_id, update.vector) for update in REPORTED]
    eafl.aggregate(MODEL, fresh)
    assert eafl.report["weight"] == pytest.approx([0.2, 0.4, 0.4])
    assert sum(eafl.report["weight"]) == pytest.approx(1)  # sum_n |D_n| / |D|


def test_without_dsa_a_cluster_aggregates_alone():
    """Client 3 of age 3 alone, with iterations of 2 versions: tau = 1 + 1 = 2, so its whole step is
    1/2 [10, 10], of which |D_1| / |D| = .4. With DSA and no report of cluster 0: 1/4 [10, 10].
    """
    alone = REPORTED[2:]
    by_data, plain = make_eafl(synchronous=False), make_eafl(synchronous=False, by_data=False)
    by_data.num_clusters = 5  # there are only two
    np.testing.assert_allclose(by_data.aggregate(MODEL, alone), [-1, -1], atol=1e-6)
    np.testing.assert_allclose(plain.aggregate(MODEL, alone), [-4, -4], atol=1e-6)
    np.testing.assert_allclose(make_eafl().aggregate(MODEL, alone), [-1.5, -1.5])


def test_without_dsa_by_the_text_clusters_count_alike():
    """1/2 for each of the two clusters: [1/3, 2/3/2] / 2 and 1/4 / 2."""
    eafl = make_eafl(by_data=False)
    eafl.aggregate(MODEL, REPORTED)
    assert eafl.report["weight"] == pytest.approx([1 / 6, 1 / 6, 1 / 8])


def test_a_schedule_of_other_clusters_is_refused():
    with pytest.raises(ValueError, match=r"synchronous=False must be algorithm\.strategy"):
        EAFL().validate_run(10, EAFL(synchronous=False).schedule)


def test_later_clients_belong_to_the_largest_cluster():
    """Client 9 has 40 examples: |D_0| = 100, |D| = 140, p_9 = 5/7 40/50, p_0 = 5/7 10/50."""
    eafl = make_eafl()
    newcomer = Update(9, 3, vec(0, 1), "gradient", 40, 0.1)
    eafl.aggregate(MODEL, [newcomer, gradient(0, vec(1, 0)), gradient(3, vec(1, 0))])
    assert eafl.report["weight"] == pytest.approx([4 / 7, 1 / 7, 2 / 7])
    assert eafl.report["cluster_sizes"] == [4, 2]


def test_clients_without_a_direction_belong_to_the_largest_cluster():
    survey = [vec(0, 0), vec(0, 1), vec(0, 2), vec(1, 0), vec(0, 0)]
    assert clusters(survey) == {0: 0, 1: 0, 2: 0, 3: 1, 4: 0}
    assert set(clusters([vec(0, 0)] * 5).values()) == {0}


def test_buffers_do_not_affect_clusters():
    model = GlobalModel(vec(1, 1, 1), version=3, num_trainable=2)
    survey = [vec(1, 0, 9), vec(2, 0, -9), vec(0, 1, 9), vec(0, 2, -9), vec(0, 3, 0)]
    assert clusters(survey, model=model) == {0: 1, 1: 1, 2: 0, 3: 0, 4: 0}


def test_as_many_clusters_as_directions_differ():
    labels = clusters([vec(0, 1), vec(0, 2), vec(0, 4), vec(1, 0), vec(2, 0)], 4)
    assert sorted(set(labels.values())) == [*range(len(set(labels.values())))]
    assert {labels[0], labels[1], labels[2]}.isdisjoint({labels[3], labels[4]})
    assert sorted(clusters([vec(0, 1), vec(1, 0)], 4).values()) == [0, 1]
    assert clusters([], 4) == {}


# -- limits, in whole runs ------------------------------------------------------------------------

CLIENTS = 8


def toward_own_point(client_id, sequence, received):
    """Gradients towards (client, 10 - client), of clients with unequal data."""
    target = np.array([client_id, 10 - client_id], np.float32)
    return Upload((received - target) / 4, "gradient", 10 + client_id, loss=1.0)


def train(strategy, schedule, seconds):
    settings = {"num_clients": CLIENTS, "num_versions": 30, "devices": Times(seconds)}
    return run(schedule, Scripted(toward_own_point), strategy=strategy, **settings)


def test_one_cluster_is_safl_with_k_of_phi_m():
    """Clusters are formed when the slowest client has arrived; from then on K = .375 8 = 3."""

    def seconds(client_id, sequence):
        return float(2 ** (client_id / CLIENTS))  # no two sums of these are equal

    eafl = EAFL(server_lr=0.5, num_clusters=1, participation=0.375, recluster=False)
    ours = train(eafl, eafl.schedule, seconds)
    safl = train(SAFL(server_lr=0.5), k_async(3), seconds)
    assert max(safl.history.ages) > 0
    assert ours.final == safl.final
    for mine, theirs in zip(ours.kind("aggregate"), safl.kind("aggregate"), strict=True):
        assert (mine["client"], mine["age"]) == (theirs["client"], theirs["age"])
        assert mine["t"] == pytest.approx(seconds(CLIENTS - 1, 0) + theirs["t"])


def test_one_cluster_per_client_is_synchronous_sgd_weighted_by_data():
    def seconds(client_id, sequence):
        return 1.0 + client_id

    eafl = EAFL(server_lr=0.5, num_clusters=CLIENTS, recluster_every=10)
    ours = train(eafl, eafl.schedule, seconds)
    rounds = train(AFL(server_lr=0.5), synchronous(CLIENTS), seconds)
    assert set(ours.history.ages) == {0}
    assert [sorted(e["client"]) for e in ours.kind("aggregate")] == [[*range(CLIENTS)]] * 30
    assert np.linalg.norm(rounds.outcome.params) > 1
    np.testing.assert_allclose(ours.outcome.params, rounds.outcome.params, rtol=1e-6)
