"""Durations recorded from a run's events."""

from run_folders import numbered

from fl_app.core.events import from_json
from fl_app.record.files import Recorder
from fl_app.record.history import History

HEADER = "client,order,start,seconds,bytes_down,bytes_up\n"


def events(*story):
    """Kind, time and client; 40 bytes down, 10 up."""
    keys = {
        "dispatch": {"version": 0, "bytes": 40},
        "arrival": {"base_version": 0, "age": 0, "bytes": 10},
        "failure": {"base_version": 0},
    }
    flats = ({"kind": kind, "t": t, "client": client, **keys[kind]} for kind, t, client in story)
    return [*map(from_json, numbered(flats))]


def record(events, recorder, history):
    for event in events:
        history.emit(event)
        recorder.emit(event)


def test_a_resumed_run_records_behind_what_there_is(tmp_path):
    path = tmp_path / "devices.csv"
    story = events(
        ("dispatch", 0.0, 7),
        ("arrival", 1.0, 7),
        ("dispatch", 1.0, 7),
        ("failure", 2.0, 7),
        ("dispatch", 2.0, 9),
        ("failure", 2.5, 9),
        ("dispatch", 2.5, 9),
        ("dispatch", 2.5, 7),
        ("arrival", 4.0, 7),
        ("arrival", 4.5, 9),
    )
    known, unknown = story[:5], story[5:]
    history = History()
    before = Recorder(path, history)
    record(known, before, history)
    keep = before.position()
    record(unknown[:2], before, history)
    record(unknown[3:4], before, history)  # the resumed run does not know of these
    before.close()
    history = History()
    for event in known:
        history.emit(event)
    after = Recorder(path, history, keep=keep)
    record(unknown, after, history)
    assert path.read_text().count("\n") == 4  # at once
    after.close()
    assert path.read_text() == HEADER + "7,0,0.0,1.0,40,10\n7,2,2.5,1.5,40,10\n9,1,2.5,2.0,40,10\n"
