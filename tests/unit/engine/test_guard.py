"""Bounds on uploads, one by one and in a run with a client that misbehaves."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from helpers import Scripted, Times, run, toward_own_number, vec

from fl_app.core.events import from_json, to_json
from fl_app.core.types import KINDS, RESIDUAL, GlobalModel, Update, Upload
from fl_app.engine.guard import MALFORMED, Guard
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


def not_finite(upload):
    return replace(upload, vector=np.full_like(upload.vector, np.nan))


def greedy(upload):
    return replace(upload, num_examples=10**9)


def lying(upload):
    return replace(upload, kind="model", base_version=0)


def outdated(upload):
    return replace(upload, base_version=0)


def unreadable(upload):
    raise ValueError("of the node")


def federation(fault, bad=lambda sequence: sequence >= 2, **guard):
    """Ten clients of which client 9 misbehaves in some of its orders, by their sequence."""

    def script(client_id, sequence, received):
        upload = toward_own_number(client_id, sequence, received)
        return fault(upload) if client_id == 9 and bad(sequence) else upload

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


@pytest.mark.parametrize("fault", [huge, not_finite])
def test_it_is_benched_and_the_event_says_why(fault):
    result = federation(fault, bench_after=3, max_norm=1000)
    (event,) = result.kind("bench")
    assert (event["client"], event["uploads"]) == (9, 3)
    assert event["reason"] == result.kind("reject")[-1]["reason"]
    assert sum(event["client"] == 9 for event in result.kind("dispatch")) == 5
    assert len(result.kind("reject")) == 3
    assert result.outcome.stopped == "num_versions"
    assert to_json(from_json(event)) == event


def test_an_accepted_update_ends_the_row():
    result = federation(huge, lambda sequence: sequence % 3 != 0, bench_after=3, max_norm=1000)
    assert result.kind("bench") == []
    assert len(result.kind("reject")) > 3


def test_updates_that_are_too_old_do_not_count():
    """Their client is slow, and not hostile."""
    result = run(
        Buffered(10, 5),
        Scripted(toward_own_number),
        devices=Times(lambda client, _: 20.0 if client == 9 else 1.0),
        num_versions=200,
        guard=Guard(max_age=3, bench_after=1),
    )
    assert len(result.kind("reject")) > 2
    assert result.kind("bench") == []


def test_replies_that_cannot_be_read_count_and_other_failures_do_not():
    """A device that cannot read its data rests between its orders."""
    guard = Guard(bench_after=2)
    counts = [guard.count_refused(9, f"{MALFORMED}: it holds 0 arrays") for _ in range(3)]
    assert counts == [0, 2, 0]  # it is benched already
    assert guard.benched == {9}
    assert federation(unreadable, bench_after=1).kind("bench") == []


def test_the_bench_outlives_a_resumed_run():
    guard = Guard(bench_after=1)
    guard.count_refused(3, "norm=1e+30 is above")
    again = Guard(bench_after=1)
    again.load_state_dict(guard.state_dict())
    assert again.benched == {3}
