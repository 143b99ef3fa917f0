"""Stays online and offline: lengths, shares, and what they depend on."""

from typing import Any

import numpy as np
import pytest

from fl_app.devices import Churn, Diurnal


def online_share(availability: Any, num_clients: int, seconds: float) -> float:
    """Share of the time that clients are online until `seconds`."""
    total = 0.0
    for client in range(num_clients):
        now, number, online = 0.0, 0, availability.starts_online(client)
        while now < seconds:
            stay = availability.stay(client, number)
            total += online * min(stay, seconds - now)
            now, number, online = now + stay, number + 1, not online
    return total / (num_clients * seconds)


def test_churn_has_exponential_stays_of_the_given_means() -> None:
    churn = Churn(mean_online=20.0, mean_offline=5.0)
    lengths: dict[bool, list[float]] = {True: [], False: []}
    for client in range(200):
        online = churn.starts_online(client)
        for number in range(50):
            lengths[online].append(churn.stay(client, number))
            online = not online
    for online, mean in ((True, 20.0), (False, 5.0)):
        assert np.mean(lengths[online]) == pytest.approx(mean, rel=0.05)
        assert np.median(lengths[online]) == pytest.approx(mean * np.log(2), rel=0.05)
    assert np.mean([churn.starts_online(c) for c in range(2000)]) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("kind", [Churn, Diurnal])
def test_stays_depend_on_seed_client_and_number_alone(kind: Any) -> None:
    one, same, other = kind(seed=0), kind(seed=0), kind(seed=1)
    forward = [one.stay(4, n) for n in range(10)]
    assert forward == [same.stay(4, n) for n in reversed(range(10))][::-1]
    assert forward != [other.stay(4, n) for n in range(10)]
    assert forward != [one.stay(5, n) for n in range(10)]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (Churn, {"mean_online": 0.0}, r"devices\.availability\.mean_online=0\.0"),
        (Churn, {"mean_offline": 0.0}, r"devices\.availability\.mean_offline=0\.0"),
        (Diurnal, {"day_seconds": 0.0}, r"devices\.availability\.day_seconds=0\.0"),
        (Diurnal, {"spread": 2.0}, r"devices\.availability\.spread=2\.0 must be in \[0, 1\]"),
        (Diurnal, {"online_share": 0.95}, r"online_share=0\.95 must be below 0\.909091"),
        (Diurnal, {"jitter": 1.5}, r"devices\.availability\.jitter=1\.5 must be in \[0, 1\)"),
    ],
)
def test_bad_values_are_refused(kind: Any, values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**values)
