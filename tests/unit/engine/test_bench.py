"""A client whose uploads are refused again and again gets no order any more."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Scripted, Times, run, toward_own_number

from fl_app.core.events import Benched, from_json, to_json
from fl_app.core.types import Upload, Vector
from fl_app.engine.guard import MALFORMED, Guard
from fl_app.schedule import Buffered


def huge(upload: Upload) -> Upload:
    return replace(upload, vector=np.full_like(upload.vector, 1e30))


def not_finite(upload: Upload) -> Upload:
    return replace(upload, vector=np.full_like(upload.vector, np.nan))


def federation(
    bad: Callable[[int], bool], fault: Callable[[Upload], Upload] = huge, **guard: Any
) -> Any:
    """Ten clients of which client 9 misbehaves in some of its orders, by their sequence."""

    def script(client_id: int, sequence: int, received: Vector) -> Upload:
        upload = toward_own_number(client_id, sequence, received)
        return fault(upload) if client_id == 9 and bad(sequence) else upload

    return run(
        Buffered(10, 5),
        Scripted(script),
        devices=Times(lambda client, _: 1.0 + client / 10),
        num_versions=30,
        guard=Guard(max_norm=1000, **guard),
    )


def orders_of(result: Any, client: int) -> int:
    return sum(event["client"] == client for event in result.kind("dispatch"))


@pytest.mark.parametrize("fault", [huge, not_finite])
def test_it_is_benched_and_the_event_says_why(fault: Callable[[Upload], Upload]) -> None:
    result = federation(lambda sequence: sequence >= 2, fault, bench_after=3)
    (event,) = result.kind("bench")
    assert (event["client"], event["uploads"]) == (9, 3)
    assert event["reason"] == result.kind("reject")[-1]["reason"]
    assert orders_of(result, 9) == 5
    assert len(result.kind("reject")) == 3
    assert result.outcome.stopped == "num_versions"
    assert from_json(event) == Benched(**{k: v for k, v in event.items() if k != "kind"})
    assert to_json(from_json(event)) == event


def test_an_accepted_update_ends_the_row() -> None:
    result = federation(lambda sequence: sequence % 3 != 0, bench_after=3)
    assert result.kind("bench") == []
    assert len(result.kind("reject")) > 3


def test_updates_that_are_too_old_do_not_count() -> None:
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


def test_replies_that_cannot_be_read_count() -> None:
    def script(client_id: int, sequence: int, received: Vector) -> Any:
        if client_id == 9:
            raise ValueError("of the node")
        return toward_own_number(client_id, sequence, received)

    guard = Guard(bench_after=2)
    assert guard.count_refused(9, f"{MALFORMED}: it holds 0 arrays") == 0
    assert guard.count_refused(9, f"{MALFORMED}: it holds 0 arrays") == 2
    assert guard.count_refused(9, f"{MALFORMED}: it holds 0 arrays") == 0  # it is benched already
    assert guard.benched == {9}
    # Other failures do not: a device that cannot read its data rests between its orders.
    result = run(
        Buffered(10, 5), Scripted(script), devices=Times(lambda client, _: 1.0 + client / 10),
        num_versions=10, guard=Guard(bench_after=1),
    )  # fmt: skip
    assert result.kind("bench") == []


def test_the_bench_outlives_a_resumed_run() -> None:
    guard = Guard(bench_after=1)
    guard.count_refused(3, "norm=1e+30 is above")
    again = Guard(bench_after=1)
    again.load_state_dict(guard.state_dict())
    assert again.benched == {3}
    again.load_state_dict({"lengths": {}, "let_in": {}})  # of an earlier version
    assert again.benched == set()
