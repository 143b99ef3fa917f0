"""What is read off an event log, on logs made by hand."""

from pathlib import Path
from typing import Any

import pytest

from faults.story import never_arrived, orders, rate, share
from fl_app.core.events import Aggregated, Arrived, Checkpointed, Dispatched, Event, Rejected
from fl_app.record.log import events_of, read_events


def event(kind: str, t: float, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "t": t, **fields}


def arrival(t: float, client: int, order: int = 0, base_version: int = 0) -> Event:
    return Arrived(t, client, order, base_version, age=0)


def test_each_order_has_its_outcome_and_a_late_reply_belongs_to_the_one_given_up() -> None:
    log = [
        event("dispatch", 0.0, client=3, version=0),
        event("dispatch", 0.0, client=4, version=0),
        event("arrival", 2.0, client=4, base_version=0, age=0),
        event("aggregate", 2.0, version=1, client=[4], age=[0]),
        event("dispatch", 2.0, client=4, version=1),
        event("failure", 5.0, client=3, base_version=0, reason="deadline passed"),
        event("reject", 7.0, client=3, base_version=0, reason="late: its deadline had passed"),
        event("dispatch", 7.0, client=3, version=1),
        event("reject", 9.0, client=3, base_version=1, reason="payload has non-finite entries"),
    ]
    told = [*orders(events_of(log), 3), *orders(events_of(log), 4)]
    assert [(o.sequence, o.version, o.start, o.ended, o.end, o.reason, o.late) for o in told] == [
        (0, 0, 0.0, "failure", 5.0, "deadline passed", "late: its deadline had passed"),
        (1, 1, 7.0, "reject", 9.0, "payload has non-finite entries", ""),
        (0, 0, 0.0, "arrival", 2.0, "", ""),
        (1, 1, 2.0, "", None, "", ""),
    ]


def test_a_stray_reply_of_nobody_is_nobodys_outcome() -> None:
    stray = Rejected(1.0, reason="duplicate: this order was answered before")
    assert orders([Dispatched(0.0, 0, 0, version=0), stray], 0)[0].ended == ""


def test_what_is_aggregated_has_to_arrive_once() -> None:
    first = Aggregated(1.0, 1, client=[0, 1], order=[0, 1], age=[0, 0])
    second = Aggregated(2.0, 2, client=[0, 1], order=[2, 3], age=[0, 1])
    good = [arrival(0.5, 0, 0), arrival(0.6, 1, 1), first, arrival(1.5, 0, 2, 1)]
    assert never_arrived([*good, arrival(1.6, 1, 3), second]) == []
    rejected = Rejected(1.6, 1, 3, 0, "non-finite")
    (problem,) = never_arrived([*good, rejected, second])
    assert problem == "version 2 holds an update of client 1 from version 0 that never arrived"
    twice = Aggregated(3.0, 3, client=[0], order=[2], age=[1])
    assert len(never_arrived([*good, arrival(1.6, 1, 3), second, twice])) == 1
    assert len(never_arrived([first, *good[:2]])) == 2, "not before it is aggregated"


def test_a_rate_is_that_of_the_time_between_arrivals() -> None:
    times = [9.0, 19.0, 29.0, 39.0, 49.0]
    assert rate(times, 20.0, 45.0) == pytest.approx(2 / 20.0)
    assert rate(times, 0.0, 45.0) == pytest.approx(4 / 39.0)
    assert rate(times, 20.0, 55.0, usual=0.1) == pytest.approx(3 / 30.0)


def test_who_falls_silent_is_counted_as_silent() -> None:
    times = [9.0, 19.0, 29.0]
    assert rate(times, 20.0, 69.0, usual=0.1) == pytest.approx(1 / 50.0)
    assert rate(times, 30.0, 69.0, usual=0.1) == 0.0
    assert rate(times, 20.0, 48.0, usual=0.1) == pytest.approx(1 / 10.0), "still usual"
    assert rate([], 0.0, 10.0) == 0.0


def test_the_share_is_that_of_the_others_alone() -> None:
    steady = [arrival(t, 0) for t in range(0, 101, 10)]
    slowed = [arrival(t, 1) for t in (0, 10, 20, 30, 40, 50, 70, 90)]
    gone = [arrival(t, 2) for t in (0, 10, 20, 30, 40, 50)]
    log = sorted([*steady, *slowed, *gone], key=lambda event: event.t)
    assert share(log, [0], [(0, 50)], (50, 100)) == pytest.approx(1.0)
    assert share(log, [0, 1], [(0, 50)], (50, 100)) == pytest.approx(0.75)
    assert share(log, [0, 2], [(0, 50)], (50, 100)) == pytest.approx(0.5)
    assert share(log, [3], [(0, 50)], (50, 100)) == 0.0
    twice = [(0.0, 50.0), (50.0, 100.0)]
    assert share(log, [1], twice, (50, 100)) == 1.0, "they were as slow by themselves"
    assert share(log, [2], [(0, 50), (51, 100)], (51, 100)) == 0.0, "it never recovered"


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert list(read_events(path)) == []
    path.write_text('{"kind":"checkpoint","t":0.5,"version":2}\n{"kind":"arr')
    assert list(read_events(path)) == [Checkpointed(0.5, 2)]
