"""Training times: means, extremes, jitter; they depend on seed, client and order alone."""

from typing import Any

import numpy as np
import pytest

from fl_app.core.slow import slow_clients
from fl_app.devices import Exponential, LogNormal, TwoSpeed, UniformRatio
from fl_app.devices.draws import uniform


@pytest.mark.parametrize("ratio", [1, 5, 110, 440])
@pytest.mark.parametrize("num_clients", [2, 3, 100])
def test_slowest_over_fastest_is_the_ratio(ratio: float, num_clients: int) -> None:
    for seed in range(5):
        means = UniformRatio(
            ratio=ratio, num_clients=num_clients, seed=seed, base_seconds=3.0
        ).mean_seconds
        assert len(means) == num_clients
        assert min(means) == 3.0
        assert max(means) == 3.0 * ratio


def test_means_between_the_extremes_are_uniform() -> None:
    means = np.array(UniformRatio(ratio=5, num_clients=10_000, seed=1).mean_seconds)
    share, _ = np.histogram(means, bins=4, range=(1, 5))
    assert share / means.size == pytest.approx(0.25, abs=0.02)


def test_without_jitter_all_orders_take_the_mean() -> None:
    devices = UniformRatio(ratio=1, num_clients=3, jitter=0.0, base_seconds=1.5)
    assert {devices.seconds(c, s, 0.0) for c in range(3) for s in range(5)} == {1.5}


def test_jitter_is_uniform_around_the_mean() -> None:
    devices = UniformRatio(ratio=5, num_clients=20, seed=3)
    relative = np.array(
        [
            devices.seconds(c, s, 0.0) / devices.mean_seconds[c]
            for c in range(20)
            for s in range(500)
        ]
    )
    assert relative.min() >= 0.8
    assert relative.max() < 1.2
    share, _ = np.histogram(relative, bins=8, range=(0.8, 1.2))
    assert share / relative.size == pytest.approx(0.125, abs=0.015)


def test_a_tenth_of_the_clients_has_half_the_speed() -> None:
    devices = TwoSpeed(num_clients=20, base_seconds=3.0, jitter=0.0)
    assert devices.mean_seconds == [3.0] * 18 + [6.0] * 2
    assert devices.seconds(19, 7, 0.0) == 2 * devices.seconds(0, 7, 0.0)
    given = TwoSpeed(num_clients=4, slow=[0, 2], slowdown=5.0)
    assert given.mean_seconds == [5.0, 1.0, 5.0, 1.0]


def test_slow_clients_are_the_last_and_at_least_one() -> None:
    assert list(slow_clients(20, 0.1)) == [18, 19]
    assert list(slow_clients(3, 0.1)) == [2]
    assert list(slow_clients(3, 1.0)) == [0, 1, 2]


def test_log_normal_means() -> None:
    means = np.array(LogNormal(num_clients=20_000, sigma=0.5, base_seconds=4.0).mean_seconds)
    assert np.median(means) == pytest.approx(4.0, rel=0.02)
    assert np.log(means).std() == pytest.approx(0.5, rel=0.02)
    assert (means > 4.0 * 1.65).mean() == pytest.approx(0.16, abs=0.01)


def test_exponential_orders() -> None:
    devices = Exponential(num_clients=10, fixed=0.25, base_seconds=2.0)
    drawn = np.array([devices.seconds(c, s, 0.0) for c in range(10) for s in range(2000)])
    assert drawn.min() >= 0.5
    assert drawn.mean() == pytest.approx(2.0, rel=0.02)
    assert np.median(drawn) == pytest.approx(0.5 + 1.5 * np.log(2), rel=0.02)
    assert devices.seconds(3, 5, 0.0) == devices.seconds(3, 5, 9.0)


def test_durations_depend_on_seed_client_and_order_alone() -> None:
    one, same = (UniformRatio(ratio=5, num_clients=10, seed=0) for _ in range(2))
    other = UniformRatio(ratio=5, num_clients=10, seed=1)
    forward = [one.seconds(4, s, 0.0) for s in range(20)]
    backward = [same.seconds(4, s, 1e6) for s in reversed(range(20))]
    assert forward == backward[::-1]
    assert len(set(forward)) == 20
    assert one.mean_seconds != other.mean_seconds
    assert uniform(0, 1, 2) != uniform(1, 1, 2)
    assert uniform(0, 1, 2) != uniform(0, 2, 1)


def test_known_values() -> None:
    # BLAKE2b is the same everywhere; a change here changes the event log of every run with jitter.
    assert uniform(0, 0, 0) == 0.17910449374335224
    assert uniform(1, 2, 3) == 0.9936378040648451


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ratio": 0.5}, r"devices\.ratio=0\.5 must be a finite number >= 1"),
        ({"ratio": float("inf")}, r"devices\.ratio=inf"),
        ({"jitter": -0.1}, r"devices\.jitter=-0\.1"),
        ({"jitter": 1.0}, r"devices\.jitter=1\.0 must be below 1"),
        ({"base_seconds": 0.0}, r"devices\.base_seconds=0\.0"),
        ({"num_clients": 0}, r"num_clients=0"),
    ],
)
def test_bad_values_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UniformRatio(**{"ratio": 5, "num_clients": 10, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("profile", "values", "message"),
    [
        (TwoSpeed, {"slow_share": 0.0}, r"slow_share=0\.0 must be above 0 and at most 1"),
        (
            TwoSpeed,
            {"slow": [3, 10]},
            r"devices\.slow=10 must be a client id in \[0, num_clients=10",
        ),
        (TwoSpeed, {"slowdown": 0.5}, r"devices\.slowdown=0\.5 must be a finite number >= 1"),
        (LogNormal, {"sigma": -1.0}, r"devices\.sigma=-1\.0"),
        (Exponential, {"fixed": 1.0}, r"devices\.fixed=1\.0 must be below 1"),
        (Exponential, {"base_seconds": -1.0}, r"devices\.base_seconds=-1\.0"),
    ],
)
def test_bad_values_of_other_profiles_are_refused(
    profile: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        profile(num_clients=10, **values)
