"""Clients that come and go under virtual time."""

import math
from typing import Any

import helpers
import numpy as np
from helpers import Stays

from fl_app.core.types import Order
from fl_app.devices import Churn
from fl_app.engine.clock import Expired, Joined, Left, Replied, Returned
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.presence import Presence
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Buffered


def make_clock(availability: Any, seconds: float, deadline: float = math.inf) -> VirtualClock:
    return VirtualClock(
        Inline(helpers.Scripted(helpers.toward_own_number)),
        helpers.Times(lambda client, sequence: seconds),
        2,
        deadline=deadline,
        availability=availability,
    )


def order(client_id: int, number: int = 0) -> Order:
    return Order(number, client_id, 0, 0, helpers.vec(0.0, 0.0), {}, 0.0)


def events(clock: VirtualClock) -> list[Any]:
    """What happens, as (time, kind, client, orders lost)."""
    happened = []
    while (event := clock.next(math.inf)) is not None:
        match event:
            case Replied(given, _) | Expired(given) | Returned(given):
                happened.append((clock.now, type(event), given.client_id))
            case Joined(client_id):
                happened.append((clock.now, Joined, client_id))
            case Left(client_id, orders, reason):
                assert reason == "went offline"
                happened.append((clock.now, Left, client_id, len(orders)))
    return happened


def test_presence_gives_changes_in_the_order_of_time() -> None:
    presence = Presence(Stays({0: [3.0, 4.0], 2: [2.0]}, offline=[2]), 3)
    assert list(presence.online) == [0, 1]
    assert presence.until(0) == 3.0
    changes = []
    while presence.due < math.inf:
        changes.append((presence.due, *presence.change()))
    assert changes == [(2.0, 2, True), (3.0, 0, False), (7.0, 0, True)]
    assert set(presence.online) == {0, 1, 2}
    assert presence.until(0) == math.inf


def test_who_goes_offline_loses_its_order_and_comes_back() -> None:
    clock = make_clock(Stays({0: [3.0, 4.0]}), seconds=5.0)
    clock.dispatch(order(0))
    clock.dispatch(order(1, number=1))
    assert events(clock) == [(3.0, Left, 0, 1), (5.0, Replied, 1), (7.0, Joined, 0)]


def test_a_deadline_that_passes_before_the_client_leaves_fails_the_order_once() -> None:
    clock = make_clock(Stays({0: [3.0]}), seconds=5.0, deadline=2.0)
    clock.dispatch(order(0))
    assert events(clock) == [(2.0, Expired, 0), (3.0, Left, 0, 0)]
    clock = make_clock(Stays({0: [6.0]}), seconds=5.0, deadline=2.0)
    clock.dispatch(order(0))
    assert events(clock) == [(2.0, Expired, 0), (5.0, Returned, 0), (6.0, Left, 0, 0)]


def run(availability: Any, seconds: float, **settings: Any) -> tuple[Engine, helpers.Recorder]:
    recorder = helpers.Recorder()
    engine = Engine(
        strategy=helpers.MeanDelta(),
        clock=make_clock(availability, seconds),
        initial=np.zeros(2, np.float32),
        sinks=[recorder],
        **settings,
    )
    return engine, recorder


def test_an_offline_client_is_given_nothing_and_its_lost_order_is_a_failure() -> None:
    engine, recorder = run(
        Stays({0: [2.5, 10.0], 1: [4.5]}, offline=[1]),
        1.0,
        schedule=Buffered(concurrency=1, buffer_size=1),
        stop=Stop(num_versions=5),
    )
    outcome = engine.run()
    dispatches = [(e["t"], e["client"]) for e in recorder.events if e["kind"] == "dispatch"]
    assert dispatches == [(0.0, 0), (1.0, 0), (2.0, 0), (4.5, 1), (5.5, 1), (6.5, 1)]
    (failure,) = [e for e in recorder.events if e["kind"] == "failure"]
    del failure["order"]
    assert failure == {
        "kind": "failure", "t": 2.5, "client": 0, "base_version": 2, "reason": "went offline"
    }  # fmt: skip
    assert recorder.history.failures == 1
    assert outcome.stopped == "num_versions"


def test_orders_that_no_stay_can_hold_stall_the_run() -> None:
    engine, _ = run(
        Churn(mean_online=1.0, mean_offline=1.0),
        100.0,
        schedule=Buffered(concurrency=1, buffer_size=1),
        stop=Stop(num_versions=1),
    )
    assert "went offline" in engine.run().stopped
