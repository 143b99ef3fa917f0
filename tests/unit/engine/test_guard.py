"""Bounds on uploads, and vectors that travel beside the model."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from helpers import MeanDelta, Scripted, Times, run, toward_own_number, vec

from fl_app.core.errors import Diverged
from fl_app.core.types import KINDS, RESIDUAL, GlobalModel, Order, Update, Upload
from fl_app.core.vector import weighted_sum
from fl_app.engine.clock import Expired
from fl_app.engine.guard import Guard
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Buffered

MODEL = GlobalModel(vec(1, 1, 7), version=5, history={3: vec(0, 0, 9)}, num_trainable=2)


def update(*vector, client=0, base=5, **more):
    settings = {"kind": "delta", "num_examples": 10, "loss": 0.5} | more
    return Update(client, base, vec(*vector), **settings)


@pytest.mark.parametrize(
    ("given", "length"),
    [
        (update(3, 4, 99), 5),  # buffers do not count
        (update(3, 4, 99, kind="gradient"), 5),
        (update(3, 4, 99, kind="pseudo", rate_sum=0.1), 5),
        (update(4, 5, 9, kind="model"), 5),  # from the current (1, 1)
        (update(3, 4, 9, kind="model", base=3), 5),  # from (0, 0)
    ],
)
def test_the_length_of_an_upload(given, length):
    assert Guard(max_norm=length).refuse(MODEL, given) == ""
    reason = Guard(max_norm=length - 0.01).refuse(MODEL, given)
    assert reason == "norm=5 is above guard.max_norm=4.99"


def test_lengths_are_compared_with_the_median_of_those_before():
    guard = Guard(max_norm_ratio=3)
    for length in (*[1.0] * 4, *[2.0] * 5):
        assert guard.refuse(MODEL, update(length, 0, 0)) == ""
    assert guard.refuse(MODEL, update(1000, 0, 0)) == ""  # nine are too few to judge by
    assert guard.refuse(MODEL, update(6, 0, 0)) == ""  # of ten the median is 2
    reason = guard.refuse(MODEL, update(6.1, 0, 0))
    assert reason == "norm=6.1 is above guard.max_norm_ratio=3 times the running median 2"


def test_the_median_follows_where_all_go():
    guard = Guard(max_norm_ratio=2)
    for _ in range(100):
        assert guard.refuse(MODEL, update(1, 0, 0)) == ""
    refused = [bool(guard.refuse(MODEL, update(5, 0, 0))) for _ in range(60)]
    assert refused == [True] * 50 + [False] * 10


def test_age_and_number_of_examples():
    guard = Guard(max_age=1, max_examples=10)
    assert guard.refuse(MODEL, update(1, 1, 1, base=4)) == ""
    reason = guard.refuse(MODEL, update(1, 1, 1, base=3))
    assert reason == "age=2 is above guard.max_age=1"
    reason = guard.refuse(MODEL, update(1, 1, 1, num_examples=11))
    assert reason == "num_examples=11 is above guard.max_examples=10"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_norm": 0}, "guard.max_norm=0 must be a finite number above 0 or null: every upload"),
        (
            {"max_norm_ratio": 1.0},
            "guard.max_norm_ratio=1.0 must be a finite number above 1 or null: half of all",
        ),
        ({"max_age": -1}, "guard.max_age=-1 must be a finite number >= 0 or null: every upload"),
        ({"max_examples": 0}, "guard.max_examples=0 must be an integer >= 1 or null: every upload"),
    ],
)
def test_bad_bounds_are_refused(settings, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        Guard(**settings)


@pytest.mark.parametrize("key", ["max_norm", "max_norm_ratio"])
def test_uploads_without_a_length_cannot_be_bounded(key):
    Guard(**{key: 9.0}).validate_kinds(KINDS)
    Guard(max_age=3).validate_kinds(["delta", RESIDUAL])
    told = f"guard.{key}=9.0 must be null with uploads of kind 'residual': their length is not"
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        Guard(**{key: 9.0}).validate_kinds(["delta", RESIDUAL])


def test_extra_vectors_are_compared_with_those_of_their_name():
    """Lengths 1 and 100, ten times; then one of them is four times as long."""

    def sent(a, b):
        return replace(update(1, 0, 0), extra={"a": vec(a, 0, 9), "b": vec(b, 0, 9)})

    guard = Guard(max_norm_ratio=3, max_norm=2)
    for _ in range(10):
        assert guard.refuse(MODEL, sent(1, 100)) == ""
    reason = guard.refuse(MODEL, sent(4, 100))
    assert reason == (
        "norm=4 of extra vector 'a' is above guard.max_norm_ratio=3 times the running median 1"
    )
    assert guard.refuse(MODEL, sent(1, 290)) == ""
    assert "of extra vector 'b'" in guard.refuse(MODEL, sent(1, 310))


# -- in a run -------------------------------------------------------------------------------------

Fault = Callable[[Upload], Upload]


def huge(upload):
    return replace(upload, vector=np.full_like(upload.vector, 1e30))


def greedy(upload):
    return replace(upload, num_examples=10**9)


def lying(upload):
    return replace(upload, kind="model", base_version=0)


def outdated(upload):
    return replace(upload, base_version=0)


def federation(fault, **guard):
    """Ten clients of which client 9 misbehaves from its third order on."""

    def script(client_id, sequence, received):
        upload = toward_own_number(client_id, sequence, received)
        return fault(upload) if client_id == 9 and sequence >= 2 else upload

    return run(
        Buffered(10, 5),
        Scripted(script),
        devices=Times(lambda client, _: 1.0 + client / 10),
        num_versions=30,
        guard=Guard(**guard),
    )


@pytest.mark.parametrize(
    ("fault", "guard", "reason"),
    [
        (huge, {"max_norm_ratio": 10}, "running median"),
        (greedy, {"max_examples": 1000}, "guard.max_examples"),
        (lying, {}, "base_version=0 is one that no order under way cites"),
        (outdated, {}, "base_version=0 is one that no order under way cites"),
    ],
)
def test_a_client_that_misbehaves_is_kept_out_and_the_others_go_on(fault, guard, reason):
    result = federation(fault, **guard)
    rejects = result.kind("reject")
    assert {event["client"] for event in rejects} == {9}
    assert len(rejects) > 3
    assert all(reason in event["reason"] for event in rejects)
    used = [client for event in result.kind("aggregate") for client in event["client"]]
    assert used.count(9) == 2
    assert result.outcome.stopped == "num_versions"
    assert np.abs(result.outcome.params).max() < 10


# -- vectors beside the model ----------------------------------------------------------------------

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
