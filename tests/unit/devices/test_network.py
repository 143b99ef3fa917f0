"""Transfer times: of the mean training time, from bytes and bandwidth, of models by name."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from fl_app.devices import Link, MeasuredLinks, OverlapCompute, OverlapNetwork, Relative


def test_relative_transfers_take_a_share_of_the_mean_training_time() -> None:
    # FedASMU: 1 % of the mean training time, (1 + 2 + 6) / 3 = 3 s; 50 times as long at 1/50.
    for slowdown, seconds in ((1, 0.03), (50, 1.5), (100, 3.0)):
        network = Relative(mean_seconds=[1.0, 2.0, 6.0], slowdown=slowdown)
        assert network.download(0, 0) == pytest.approx(seconds)
        assert network.upload(2, 9) == pytest.approx(seconds)


def test_a_links_transfers_follow_from_bytes_bandwidth_and_latency() -> None:
    link = Link(num_bytes=1_000_000, down=500_000, up=200_000, latency=0.1, jitter=0.0)
    assert link.download(0, 0) == pytest.approx(2.1)
    assert link.upload(0, 0) == pytest.approx(5.1)


def test_a_links_jitter_is_its_own_for_either_way_and_for_every_order() -> None:
    link = Link(num_bytes=1000, down=1000, up=1000, latency=0.0, jitter=0.2, seed=1)
    down, up = (np.array([way(3, s) for s in range(2000)]) for way in (link.download, link.upload))
    for way in (down, up):
        assert way.min() >= 0.8
        assert way.max() < 1.2
        assert way.mean() == pytest.approx(1.0, abs=0.01)
    assert abs(np.corrcoef(down, up)[0, 1]) < 0.06


def test_overlaps_table_by_number_of_parameters() -> None:
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
    ("network", "values", "message"),
    [
        (Relative, {"share": -0.1}, r"devices\.network\.share=-0\.1"),
        (Relative, {"slowdown": 0}, r"devices\.network\.slowdown=0 "),
        (Link, {"down": 0.0}, r"devices\.network\.down=0\.0"),
        (Link, {"up": 0.0}, r"devices\.network\.up=0\.0"),
        (Link, {"latency": -1.0}, r"devices\.network\.latency=-1\.0"),
        (Link, {"jitter": 1.0}, r"devices\.network\.jitter=1\.0 must be below 1"),
    ],
)
def test_bad_values_are_refused(network: Any, values: dict[str, float], message: str) -> None:
    facts = {"mean_seconds": [1.0]} if network is Relative else {"num_bytes": 4}
    with pytest.raises(ValueError, match=message):
        network(**facts, **values)


@pytest.mark.parametrize(
    "network",
    [
        partial(Relative, mean_seconds=[1.0, 2.0]),
        partial(Link, num_bytes=1000, latency=0.0),
        partial(MeasuredLinks, num_bytes=1000, num_clients=2),
        partial(OverlapNetwork, num_bytes=4 * 199_210),
    ],
)
def test_either_way_takes_as_long_as_what_travels_is_large(network: Any) -> None:
    plain, more = network(), network(download_share=3.0, upload_share=0.5)
    assert more.download(1, 4) == pytest.approx(3.0 * plain.download(1, 4))
    assert more.upload(1, 4) == pytest.approx(0.5 * plain.upload(1, 4))
