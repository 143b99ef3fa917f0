"""Durations recorded from a run's events, and replayed."""

import logging
from pathlib import Path

import helpers
import pytest
from helpers import events_of

from fl_app.core.events import Event
from fl_app.devices import Fleet, Recorder, Replay, UniformRatio
from fl_app.record.history import History
from fl_app.schedule import Buffered

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


def test_a_replayed_run_takes_the_time_of_the_recorded_one(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    history = History()
    recorder = Recorder(path, history)
    schedule = Buffered(concurrency=4, buffer_size=4)
    devices = Fleet(UniformRatio(ratio=5, num_clients=6, jitter=0.0))
    first = helpers.run(schedule, num_clients=6, devices=devices, sinks=[history, recorder])
    recorder.close()
    again = helpers.run(
        schedule, num_clients=6, devices=Fleet(Replay(file=str(path), num_clients=6, num_bytes=8))
    )
    # Rounding apart: a duration was recorded as the difference of two times.
    assert again.outcome.seconds == pytest.approx(first.outcome.seconds)
    assert again.history.ages == first.history.ages


def test_clients_and_orders_are_dealt_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text(HEADER + "90,1,0,4.0,8,8\n90,0,0,2.0,8,8\n31,0,0,1.0,8,8\n")
    replay = Replay(file=str(path), num_clients=3, num_bytes=8)
    assert [replay.seconds(0, s, 0.0) for s in range(2)] == [1.0, 1.0]
    assert [replay.seconds(1, s, 0.0) for s in range(3)] == [2.0, 4.0, 2.0]
    assert replay.seconds(2, 0, 0.0) == 1.0
    assert replay.mean_seconds == [1.0, 3.0, 1.0]


def test_another_models_size_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "devices.csv"
    path.write_text(HEADER + "0,0,0,1.0,8,8\n")
    with caplog.at_level(logging.WARNING):
        Replay(file=str(path), num_clients=1, num_bytes=8)
        assert not caplog.text
        Replay(file=str(path), num_clients=1, num_bytes=400)
    assert "recorded with models of 8 bytes, this run's have 400" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"devices\.file=.*devices\.csv must be a file: there is nothing to replay"),
        (HEADER, r"must be a record of orders: it holds none"),
        (HEADER + "0,0,0,-1.0,8,8\n", r"line 2: ValueError\('seconds=-1\.0'\)"),
        (HEADER + "0,0,0,soon,8,8\n", r"line 2: .*soon"),
        ("client,seconds\n0,1.0\n", r"line 2: KeyError\('order'\); columns must be client,order,"),
        (HEADER + "0,0\n", r"line 2: TypeError"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "devices.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        Replay(file=str(path), num_clients=1, num_bytes=8)
