"""Vectors that travel beside the model, from the strategy to clients and back."""

import re
from dataclasses import replace

import numpy as np
import pytest
from helpers import MeanDelta, Times, run, vec

from fl_app.core.errors import Diverged
from fl_app.core.types import Order, Upload
from fl_app.core.vector import weighted_sum
from fl_app.engine.clock import Expired
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Buffered

SCHEDULE = Buffered(concurrency=5, buffer_size=3)


class Shifted(MeanDelta):
    """Sends (t, client) and adds the mean of what comes back beside the displacements."""

    order_extra = ("shift",)
    upload_extra = ("seen", "own")

    def dispatch_extra(self, model, client_id):
        return {"shift": vec(model.version, client_id)}

    def refresh(self, model, paused):
        return model.params, {}

    def aggregate(self, model, updates):
        for update in updates:
            assert update.extra["seen"].tolist() == [update.base_version, update.client_id]
            assert not update.extra["seen"].flags.writeable
        seen = [update.extra["seen"] for update in updates]
        mean = weighted_sum([0.01] * len(seen), seen)
        return super().aggregate(model, updates) + mean


class Echo:
    """Returns what came, and a vector of its own."""

    def train(self, order):
        out = np.full_like(order.vector, 1 / 8)
        seen = order.extra["shift"]
        assert not seen.flags.writeable
        extra = {"own": np.full_like(out, order.client_id), "seen": seen.copy()}
        return Upload(out, "delta", 10, 0.5, extra=extra)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_they_travel_both_ways_and_are_counted(workers):
    result = run(SCHEDULE, Echo(), strategy=Shifted(), workers=workers)
    inline = run(SCHEDULE, Echo(), strategy=Shifted())
    assert result.history.rejected == result.history.failures == 0
    assert (result.final, result.events) == (inline.final, inline.events)
    assert result.final != run(SCHEDULE, num_versions=20).final
    assert result.history.bytes_down == len(result.kind("dispatch")) * 2 * 8
    assert result.history.bytes_up == len(result.kind("arrival")) * 3 * 8


def test_an_order_keeps_what_the_strategy_changes_in_place_later():
    """Under virtual time orders are carried out when they end, long after they were given."""

    class InPlace(Shifted):
        def __init__(self):
            super().__init__()
            self.shift = np.zeros(2, np.float32)

        def dispatch_extra(self, model, client_id):
            self.shift[:] = model.version, client_id
            return {"shift": self.shift}

    result = run(SCHEDULE, Echo(), strategy=InPlace())
    assert result.history.rejected == 0
    assert result.final == run(SCHEDULE, Echo(), strategy=Shifted()).final


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "extra vectors are none, expected shift"),
        ({"shift": vec(0, 0), "more": vec(0, 0)}, "extra vectors are shift, more, expected shift"),
        ({"shift": vec(0)}, r"extra vector 'shift': payload has shape \(1,\), expected \(2,\)"),
        ({"shift": np.zeros(2)}, "extra vector 'shift': payload is float64, expected float32"),
    ],
)
def test_a_strategy_that_sends_something_else_is_told(given, text):
    class Wrong(Shifted):
        def dispatch_extra(self, model, client_id):
            return given

    error = run(SCHEDULE, Echo(), strategy=Wrong()).outcome.error
    assert re.fullmatch(rf"ValueError: dispatch_extra\(\) for client \d: {text}", str(error))


def test_a_strategy_whose_vector_is_no_longer_finite_ends_the_run():
    class Exploding(Shifted):
        def dispatch_extra(self, model, client_id):
            return {"shift": vec(model.version, np.inf if model.version == 2 else client_id)}

    outcome = run(SCHEDULE, Echo(), strategy=Exploding()).outcome
    assert isinstance(outcome.error, Diverged)
    assert str(outcome.error).startswith("what travels with version 2: shift must be finite")


def test_the_answer_to_a_pause_brings_those_of_the_newer_version():
    """When client 0 pauses others have made versions; the answer counts as an order."""
    seen = []

    class Pausing(Echo):
        def train(self, order):
            if order.client_id == 0 and "continues" not in order.config:
                return Upload(vec(), "delta", 10, 0.5, done=False, progress=0.5)
            if order.client_id == 0 and order.extra:
                seen.append((order.extra["shift"][0], order.config["fresh_version"]))
            upload = super().train(replace(order, extra={"shift": vec(0, 0)}))
            shift = vec(order.base_version, order.client_id)
            return replace(upload, extra={**upload.extra, "seen": shift})

    result = run(
        SCHEDULE,
        Pausing(),
        strategy=Shifted(),
        devices=Slow(),
        num_clients=5,
        num_versions=8,
        epochs=2,
    )
    assert seen
    assert all(shift == version > 0 for shift, version in seen)
    down = len(result.kind("dispatch")) + len(result.kind("refresh"))
    assert result.history.bytes_down == down * 2 * 8


class Slow(Times):
    """Client 0 takes two seconds, the others one."""

    def __init__(self):
        super().__init__(lambda client_id, sequence: 2.0 if client_id == 0 else 1.0)


def test_an_order_that_is_never_carried_out_keeps_nothing_alive():
    """Its vectors would be as many as there are orders."""
    clock = VirtualClock(Inline(Echo()), Times(lambda *_: 9.0), 2, deadline=1.0)
    clock.dispatch(Order(0, 0, 0, 0, vec(1, 1), {}, 0.0, extra={"shift": vec(1, 1)}))
    expired = clock.next(100.0)
    assert isinstance(expired, Expired)
    assert (expired.order.vector.size, expired.order.extra) == (0, {})
