"""Logs as they are found: torn, long, or written before orders had numbers."""

from pathlib import Path

import pytest

from fl_app.core.events import Aggregated, Arrived, Checkpointed, Clustered, Failed, Rejected
from fl_app.record.log import events_of, read_events

LINES = '{"kind":"checkpoint","t":0.5,"version":2}\n{"kind":"checkpoint","t":1.5,"version":4}\n'


def test_a_line_without_an_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert list(read_events(path)) == []
    path.write_text(LINES + '{"kind":"arr')
    assert list(read_events(path)) == [Checkpointed(0.5, 2), Checkpointed(1.5, 4)]


def test_a_log_is_read_as_far_as_a_checkpoint_knows_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(LINES)
    assert list(read_events(path, len(LINES) // 2)) == [Checkpointed(0.5, 2)]
    assert list(read_events(path, 0)) == []


def test_orders_without_numbers_are_told_by_client_and_version() -> None:
    """Client 0 waits twice in the buffer; of its updates from version 0 the older one is meant."""
    arrival = {"base_version": 0, "age": 0}
    events = events_of(
        [
            {"kind": "dispatch", "t": 0.0, "client": 0, "version": 0},
            {"kind": "arrival", "t": 1.0, "client": 0, **arrival},
            {"kind": "dispatch", "t": 1.0, "client": 0, "version": 0},
            {"kind": "dispatch", "t": 1.0, "client": 1, "version": 0},
            {"kind": "arrival", "t": 2.0, "client": 0, **arrival},
            {"kind": "aggregate", "t": 2.0, "version": 1, "client": [0], "age": [0]},
            {"kind": "failure", "t": 3.0, "client": 1, "base_version": 0, "reason": "deadline"},
            {"kind": "reject", "t": 4.0, "client": 1, "base_version": 0, "reason": "late"},
            {"kind": "reject", "t": 4.0, "reason": "duplicate"},
            {"kind": "notice", "t": 4.0, "client": 1, "version": 1},
            {"kind": "cluster", "t": 4.0, "version": 1, "client": [0], "cluster": [0],
             "dropped": [0]},
        ]
    )  # fmt: skip
    told = list(events)
    assert [e.order for e in told if isinstance(e, Arrived)] == [0, 1]
    assert [e.order for e in told if isinstance(e, Failed | Rejected)] == [2, 2, None]
    assert [e.order for e in told if isinstance(e, Aggregated | Clustered)] == [[0], [1]]
    assert told[-2].kind == "recall"


def test_an_update_that_never_arrived_cannot_have_been_aggregated() -> None:
    cheated = {"kind": "aggregate", "t": 2.0, "version": 2, "client": [5], "age": [1]}
    with pytest.raises(ValueError, match="an update of client 5 from version 0 left the buffer"):
        list(events_of([cheated]))
