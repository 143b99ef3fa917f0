"""Training and transfer times: means, extremes, jitter; an order's seconds and joules."""

import math
import re
from dataclasses import fields
from functools import partial

import pytest

from fl_app.devices.compute import (
    Exponential,
    LogNormal,
    MeasuredPhones,
    OverlapCompute,
    TwoSpeed,
    UniformRatio,
)
from fl_app.devices.fleet import Churn, Energy, Fleet
from fl_app.devices.network import Link, MeasuredLinks, OverlapNetwork, Relative


@pytest.mark.parametrize(
    ("made", "total"),
    [
        (UniformRatio(ratio=5, num_clients=7, seed=3), 70.60966637664839),
        (TwoSpeed(slow_share=0.3, num_clients=7, seed=3), 35.37833720666147),
        (LogNormal(num_clients=7, seed=3), 26.344380680940898),
        (Exponential(base_seconds=3.0, num_clients=7, seed=3), 64.00589215960031),
        (
            OverlapCompute(num_bytes=796_840, num_examples=[1, 5, 7, 3, 4, 5, 6], epochs=2),
            204.42285714285717,
        ),
        (MeasuredPhones(num_clients=7, seed=3), 27.4544055420801),
        (Relative(mean_seconds=[1.0, 2.0, 7.0], slowdown=50), 93.33333333333331),
        (Link(num_bytes=12_345, seed=1, upload_share=0.3), 3.2330966310700324),
        (MeasuredLinks(num_bytes=12_345, slowdown=3.0, num_clients=7, seed=3), 0.6169851020834717),
        (Churn(seed=2), 1149.664314635567),
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
        (TwoSpeed, {"slow_share": 0.0}, "slow_share=0.0 must be in (0, 1]"),
        (Exponential, {"base_seconds": 0.0}, "devices.base_seconds=0.0 must be a finite number"),
        (Link, {"jitter": 1.0}, "devices.network.jitter=1.0 must be in [0, 1)"),
        (Energy, {"radio_watts": -1.0}, "devices.energy.radio_watts=-1.0"),
        (Churn, {"mean_online": 0.0}, "devices.availability.mean_online=0.0"),
    ],
)
def test_bad_values_are_refused(kind, values, told):
    facts = {"num_clients": 10, "num_bytes": 4, "mean_seconds": [1.0]}
    own = {field.name for field in fields(kind)}
    with pytest.raises(ValueError, match=re.escape(told)):
        kind(**{key: fact for key, fact in facts.items() if key in own}, **values)
