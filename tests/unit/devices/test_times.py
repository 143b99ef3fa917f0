"""Training and transfer times: means, extremes, jitter; an order's seconds and joules."""

import math
import re
from dataclasses import fields
from functools import partial

import pytest

from fl_app.devices import (
    Churn,
    Diurnal,
    Energy,
    Exponential,
    Fleet,
    Link,
    LogNormal,
    MeasuredLinks,
    MeasuredPhones,
    OverlapCompute,
    OverlapNetwork,
    Relative,
    TwoSpeed,
    UniformRatio,
)
from fl_app.devices.draws import uniform


@pytest.mark.parametrize("ratio", [1, 5, 110, 440])
@pytest.mark.parametrize("num_clients", [2, 3, 100])
def test_slowest_over_fastest_is_the_ratio(ratio, num_clients):
    for seed in range(5):
        means = UniformRatio(
            ratio=ratio, num_clients=num_clients, seed=seed, base_seconds=3.0
        ).mean_seconds
        assert len(means) == num_clients
        assert min(means) == 3.0
        assert max(means) == 3.0 * ratio


def test_a_tenth_of_the_clients_has_half_the_speed():
    devices = TwoSpeed(num_clients=20, base_seconds=3.0, jitter=0.0)
    assert devices.mean_seconds == [3.0] * 18 + [6.0] * 2
    assert devices.seconds(19, 7, 0.0) == 2 * devices.seconds(0, 7, 0.0)


def test_durations_depend_on_seed_client_and_order_alone():
    one, same = (UniformRatio(ratio=5, num_clients=10, seed=0) for _ in range(2))
    other = UniformRatio(ratio=5, num_clients=10, seed=1)
    forward = [one.seconds(4, s, 0.0) for s in range(20)]
    backward = [same.seconds(4, s, 1e6) for s in reversed(range(20))]
    assert forward == backward[::-1]
    assert len(set(forward)) == 20
    assert one.mean_seconds != other.mean_seconds
    assert uniform(0, 1, 2) != uniform(1, 1, 2)
    assert uniform(0, 1, 2) != uniform(0, 2, 1)


@pytest.mark.parametrize(
    ("made", "total"),
    [
        (UniformRatio(ratio=5, num_clients=7, seed=3), 70.60966637664839),
        (TwoSpeed(slow_share=0.3, num_clients=7, seed=3), 35.37833720666147),
        (LogNormal(num_clients=7, seed=3), 26.344380680940898),
        (Exponential(fixed=0.1, base_seconds=3.0, num_clients=7, seed=3), 66.00530294364027),
        (
            OverlapCompute(num_bytes=796_840, num_examples=[1, 5, 7, 3, 4, 5, 6], epochs=2),
            204.42285714285717,
        ),
        (MeasuredPhones(num_clients=7, seed=3), 27.4544055420801),
        (Relative(mean_seconds=[1.0, 2.0, 7.0], slowdown=50), 93.33333333333331),
        (Link(num_bytes=12_345, seed=1, upload_share=0.3), 3.2330966310700324),
        (MeasuredLinks(num_bytes=12_345, slowdown=3.0, num_clients=7, seed=3), 0.6169851020834717),
        (Churn(seed=2), 1149.664314635567),
        (Diurnal(seed=2), 1091433.1178505735),
    ],
    ids=lambda made: type(made).__name__,
)
def test_seconds_of_every_kind_are_as_ever(made, total):
    """Published runs name a seed: their devices stay what they were."""
    orders = [(client_id, number) for client_id in range(7) for number in range(4)]
    if hasattr(made, "seconds"):
        seconds = [made.seconds(*order, 0.0) for order in orders]
    elif hasattr(made, "stay"):
        seconds = [made.stay(*order) for order in orders]
    else:
        seconds = [made.download(*order) + made.upload(*order) for order in orders]
    assert sum(seconds) == pytest.approx(total, rel=1e-9)


def test_relative_transfers_take_a_share_of_the_mean_training_time():
    # FedASMU: 1 % of the mean training time, (1 + 2 + 6) / 3 = 3 s; 50 times as long at 1/50.
    for slowdown, seconds in ((1, 0.03), (50, 1.5), (100, 3.0)):
        network = Relative(mean_seconds=[1.0, 2.0, 6.0], slowdown=slowdown)
        assert network.download(0, 0) == pytest.approx(seconds)
        assert network.upload(2, 9) == pytest.approx(seconds)


def test_a_links_transfers_follow_from_bytes_bandwidth_and_latency():
    link = Link(num_bytes=1_000_000, down=500_000, up=200_000, latency=0.1, jitter=0.0)
    assert link.download(0, 0) == pytest.approx(2.1)
    assert link.upload(0, 0) == pytest.approx(5.1)


def test_overlaps_table_by_number_of_parameters():
    # VGG_R: 49.33 s of five epochs on the largest client, 64.40 - 49.33 = 15.07 s of communication.
    network = OverlapNetwork(num_bytes=4 * 2_440_394)
    assert network.download(0, 0) + network.upload(0, 0) == pytest.approx(64.40 - 49.33)
    compute = OverlapCompute(num_bytes=4 * 2_440_394, num_examples=[100, 400, 200])
    assert [compute.seconds(c, 0, 0.0) for c in range(3)] == pytest.approx(
        [49.33 / 4, 49.33, 49.33 / 2]
    )
    with pytest.raises(ValueError, match=r"number of parameters=10 must be one of 199210, "):
        OverlapNetwork(num_bytes=40)


@pytest.mark.parametrize(
    "network",
    [
        partial(Relative, mean_seconds=[1.0, 2.0]),
        partial(Link, num_bytes=1000, latency=0.0),
        partial(MeasuredLinks, num_bytes=1000, num_clients=2),
        partial(OverlapNetwork, num_bytes=4 * 199_210),
    ],
)
def test_either_way_takes_as_long_as_what_travels_is_large(network):
    plain, more = network(), network(download_share=3.0, upload_share=0.5)
    assert more.download(1, 4) == pytest.approx(3.0 * plain.download(1, 4))
    assert more.upload(1, 4) == pytest.approx(0.5 * plain.upload(1, 4))


class Two:
    """Training takes 10 s."""

    mean_seconds = (10.0,)

    def seconds(self, client_id, sequence, now):
        return 10.0


class Transfers:
    """Three seconds down, four up."""

    def download(self, client_id, sequence):
        return 3.0

    def upload(self, client_id, sequence):
        return 4.0


def test_seconds_are_those_of_all_three():
    assert Fleet(Two()).parts(0, 0, 0.0).seconds == 10.0
    assert Fleet(Two(), Transfers()).parts(0, 0, 0.0).seconds == 17.0


@pytest.mark.parametrize(
    ("elapsed", "joules"),
    [
        (0.0, 0.0),
        (2.0, 2 * 1.0),  # downloading
        (5.0, 3 * 1.0 + 2 * 5.0),  # training
        (14.0, 4 * 1.0 + 10 * 5.0),  # uploading
        (17.0, 7 * 1.0 + 10 * 5.0),
        (math.inf, 7 * 1.0 + 10 * 5.0),
    ],
)
def test_joules_of_the_first_seconds_of_an_order(elapsed, joules):
    fleet = Fleet(Two(), Transfers(), Energy(compute_watts=5.0, radio_watts=1.0))
    assert Fleet(Two(), Transfers()).joules(0, 0, 0.0) is None  # unknown
    assert fleet.joules(0, 0, 0.0, elapsed) == pytest.approx(joules)


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        (UniformRatio, {"ratio": 0.5}, "devices.ratio=0.5 must be a finite number >= 1"),
        (TwoSpeed, {"slow_share": 0.0}, "slow_share=0.0 must be above 0 and at most 1"),
        (Exponential, {"fixed": 1.0}, "devices.fixed=1.0 must be in [0, 1)"),
        (Link, {"jitter": 1.0}, "devices.network.jitter=1.0 must be in [0, 1)"),
        (Energy, {"radio_watts": -1.0}, "devices.energy.radio_watts=-1.0"),
        (Churn, {"mean_online": 0.0}, "devices.availability.mean_online=0.0"),
        (Diurnal, {"spread": 2.0}, "devices.availability.spread=2.0 must be in [0, 1]"),
        (Diurnal, {"online_share": 0.95}, "online_share=0.95 must be below 0.909091"),
        (Diurnal, {"jitter": 1.5}, "devices.availability.jitter=1.5 must be in [0, 1)"),
    ],
)
def test_bad_values_are_refused(kind, values, told):
    facts = {"num_clients": 10, "num_bytes": 4, "mean_seconds": [1.0]}
    own = {field.name for field in fields(kind)}
    with pytest.raises(ValueError, match=re.escape(told)):
        kind(**{key: fact for key, fact in facts.items() if key in own}, **values)
