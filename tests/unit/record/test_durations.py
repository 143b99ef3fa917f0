"""Durations recorded from a run's events."""

from pathlib import Path

from helpers import events_of

from fl_app.core.events import Event
from fl_app.record.files import Recorder
from fl_app.record.history import History

HEADER = "client,order,start,seconds,bytes_down,bytes_up\n"


def events(*story: tuple[str, float, int]) -> list[Event]:
    """Kind, time and client; 40 bytes down, 10 up."""
    keys = {
        "dispatch": {"version": 0, "bytes": 40},
        "arrival": {"base_version": 0, "age": 0, "bytes": 10},
        "failure": {"base_version": 0},
    }
    return [
        *events_of(
            {"kind": kind, "t": t, "client": client, **keys[kind]} for kind, t, client in story
        )
    ]


def record(events: list[Event], recorder: Recorder, history: History) -> None:
    for event in events:
        history.emit(event)
        recorder.emit(event)


def test_orders_that_arrived_are_recorded_at_once(tmp_path: Path) -> None:
    history = History()
    recorder = Recorder(tmp_path / "devices.csv", history)
    story = events(
        ("dispatch", 0.0, 7),
        ("dispatch", 0.5, 9),
        ("failure", 1.0, 7),
        ("dispatch", 1.0, 7),
        ("arrival", 3.0, 9),
        ("arrival", 3.5, 7),
    )
    record(story, recorder, history)
    text = (tmp_path / "devices.csv").read_text()
    assert text == HEADER + "9,0,0.5,2.5,40,10\n7,1,1.0,2.5,40,10\n"
    recorder.close()


def test_a_resumed_run_records_behind_what_there_is(tmp_path: Path) -> None:
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
    after.close()
    assert path.read_text() == HEADER + "7,0,0.0,1.0,40,10\n7,2,2.5,1.5,40,10\n9,1,2.5,2.0,40,10\n"
