"""Events and their form in the log."""

import json

import pytest

from fl_app.core.events import (
    Aggregated,
    Arrived,
    Dispatched,
    Rejected,
    from_json,
    to_json,
)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            Dispatched(0.5, 3, 7, version=2, parts=[1, 2, 1], beside=True),
            '{"kind": "dispatch", "t": 0.5, "client": 3, "order": 7, "version": 2, "bytes": 0, '
            '"parts": [1, 2, 1], "beside": true}',
        ),
        (
            Arrived(1.5, 3, 7, base_version=2, age=1, bytes=4),
            '{"kind": "arrival", "t": 1.5, "client": 3, "order": 7, "base_version": 2, "age": 1, '
            '"loss": null, "bytes": 4}',
        ),
        (
            Aggregated(2.0, 4, client=[3], order=[7], age=[1], report={"weight": [1.0]}),
            '{"kind": "aggregate", "t": 2.0, "version": 4, "client": [3], "order": [7], '
            '"age": [1], "weight": [1.0]}',
        ),
        (Rejected(3.0, reason="duplicate"), '{"kind": "reject", "t": 3.0, "reason": "duplicate"}'),
    ],
)
def test_an_event_is_one_flat_object_and_comes_back(event, line):
    assert json.dumps(to_json(event)) == line
    assert from_json(json.loads(line)) == event


def test_what_is_no_event_is_refused():
    with pytest.raises(ValueError, match=r"an event of unknown kind: {'kind': 'party', 't': 1.0}"):
        from_json({"kind": "party", "t": 1.0})
    with pytest.raises(ValueError, match=r"missing .* 'version'.*: {'kind': 'checkpoint'"):
        from_json({"kind": "checkpoint", "t": 1.0})
