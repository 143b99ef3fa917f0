"""Clients that start by the clock."""

import helpers
import numpy as np
import pytest
from helpers import Times, run

from fl_app.schedule.periodic import Periodic


def starts(schedule: Periodic, **more: object) -> list[float]:
    made = run(
        schedule,
        helpers.Scripted(helpers.toward_own_number),
        num_clients=20,
        num_versions=8,
        devices=Times(lambda client, sequence: 12.0),
        **more,  # type: ignore[arg-type]
    )
    return [event["t"] for event in made.events if event["kind"] == "dispatch"]


def test_one_client_every_five_seconds_up_to_the_bound() -> None:
    """Each takes 12 s: with two at a time the third waits for the tick after the first is back."""
    assert starts(Periodic(period=5.0, burst=1, concurrency=2))[:5] == [0, 5, 15, 20, 30]


def test_a_burst_fills_the_places() -> None:
    assert starts(Periodic(period=10.0, burst=3, concurrency=4))[:5] == [0, 0, 0, 10, 20]


def test_every_arrival_is_taken_alone() -> None:
    schedule = Periodic()
    assert schedule.wake(0.0) == 5.0
    assert schedule.wake(4.9) == 5.0
    assert schedule.wake(5.0) == 10.0
    assert schedule.wake(31.0) == 35.0


def test_time_goes_on_whatever_rounding_does() -> None:
    schedule, now = Periodic(period=0.1), 0.0
    for _ in range(10_000):
        later = schedule.wake(now)
        assert later > now
        now = later
    assert now == pytest.approx(1000.0)


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"schedule.period=0"):
        Periodic(period=0)
    with pytest.raises(ValueError, match=r"schedule.burst=0"):
        Periodic(burst=0)
    with pytest.raises(ValueError, match=r"schedule.concurrency=10 must be at most num_clients=4"):
        Periodic().validate_population(4)


def test_who_starts_is_drawn() -> None:
    made = run(
        Periodic(period=1.0, concurrency=5),
        helpers.Scripted(helpers.toward_own_number),
        num_clients=50,
        num_versions=20,
        devices=Times(lambda client, sequence: 3.5),
    )
    clients = [event["client"] for event in made.events if event["kind"] == "dispatch"]
    assert len(set(clients)) > 10
    assert np.ptp(clients) > 10
