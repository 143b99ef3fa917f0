"""The files of a run, with its durations, and its progress on the console."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console
from run_folders import numbered

from fl_app.core.events import (
    Aggregated,
    Arrived,
    ClientsEvaluated,
    Dispatched,
    Evaluated,
    from_json,
)
from fl_app.record.files import FLUSH_EVERY, MAX_LINES, JsonLines, Metrics, Recorder
from fl_app.record.history import History
from fl_app.record.progress import LINE_EVERY, Progress


class Wall:
    """A wall clock that a test turns by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def dispatch(t, client=3):
    return Dispatched(t, client, order=0, version=0, bytes=8)


def arrival(t=0.5, order=0):
    return Arrived(t, 3, order, base_version=0, age=0)


def evaluation(version, t, **metrics):
    return Evaluated(t, version, metrics)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, None),
        (-math.inf, None),
        (np.float32("nan"), None),
        (np.array([0.5, np.inf]), [0.5, None]),
        ({"deep": [1, (math.nan, "x")]}, {"deep": [1, [None, "x"]]}),
        (np.int64(7), 7),
        (np.float32(0.5), 0.5),
        (np.arange(2), [0, 1]),
    ],
)
def test_event_values_are_always_valid_json(tmp_path, value, written):
    sink = JsonLines(tmp_path / "events.jsonl")
    sink.emit(Evaluated(1.0, 1, {"loss": value}))
    sink.close()
    line = json.dumps(written, separators=(",", ":"))
    text = (tmp_path / "events.jsonl").read_text()
    assert text == f'{{"kind":"evaluate","t":1.0,"version":1,"loss":{line}}}\n'


def test_events_reach_the_disk_after_seconds_of_wall_time_or_many_events(tmp_path):
    wall = Wall()
    path = tmp_path / "events.jsonl"
    sink = JsonLines(path, wall=wall)
    sink.emit(dispatch(0.0))
    assert path.read_text() == ""
    wall.now += FLUSH_EVERY
    sink.emit(dispatch(1.0))
    assert path.read_text().count("\n") == 2
    for _ in range(MAX_LINES):
        sink.emit(dispatch(2.0))
    assert path.read_text().count("\n") == 2 + MAX_LINES
    sink.close()


def on_clients(version, t, **means):
    figures = {}
    for name, mean in means.items():
        figures |= {f"{name}_mean": mean, f"{name}_std": 0.25, f"{name}_worst_decile": 0.0}
    return ClientsEvaluated(t, version, t - 1, 10, clients=4, num_examples=40, metrics=figures)


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_rows_are_kept_whatever_columns_came_after_the_checkpoint(tmp_path, rows):
    path = tmp_path / "metrics.csv"
    events = [
        evaluation(0, 0.0, accuracy=0.125, loss=2.0),
        evaluation(10, 1.0, accuracy=0.25, loss=1.5),
        on_clients(20, 3.0, accuracy=0.5, f1=0.5, loss=1.0),
        evaluation(30, 4.0, accuracy=0.25, loss=1.0),
    ]
    sink = Metrics(path)
    for event in events[:rows]:
        sink.emit(event)
    position = sink.position()
    for event in events[rows:]:
        sink.emit(event)
    sink.close()
    whole = path.read_text()
    sink = Metrics(path, keep=position)
    assert sink.position() == position
    for event in events[rows:]:
        sink.emit(event)
    sink.close()
    assert path.read_text() == whole


def work(order, version=None):
    """What is told of an order, and of the version that its update makes."""
    yield Dispatched(0.0, 3, order, version=0)
    yield arrival(order=order)
    if version is not None:
        yield Aggregated(0.0, version, client=[3], order=[order], age=[0])


def watched(total, label, **settings):
    """A progress display, and how to tell it and its history of an event."""
    history = History()
    sink = Progress(history, total, label, **settings)

    def tell(event):
        history.emit(event)
        sink.emit(event)

    return sink, tell


def test_progress_prints_lines_soon_then_now_and_then_and_at_the_end_where_it_cannot_draw():
    wall, out = Wall(), io.StringIO()
    sink, tell = watched(20, "fedbuff", console=Console(file=out), wall=wall)
    for version in range(1, 9):
        for event in work(version, version):
            tell(event)
        tell(evaluation(version, 0.0, accuracy=version / 10))
        wall.now += LINE_EVERY / 4
    for event in work(9):
        tell(event)
    tell(evaluation(8, 0.0, accuracy=None))
    sink.close()
    assert out.getvalue().splitlines() == [
        "fedbuff: 1/20 versions 1 updates at 24/min acc 10.0%",
        "fedbuff: 5/20 versions 5 updates at 24/min acc 50.0%",
        "fedbuff: 8/20 versions 9 updates at 27/min acc -",
    ]


def test_progress_bar_is_drawn_ten_times_a_second_at_most_and_left_standing():
    wall, out = Wall(), io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    sink, tell = watched(1000, "[fedbuff]", console=console, wall=wall)
    for version in range(1, 1001):
        for event in work(version, version):
            tell(event)
        wall.now += 0.001
    drawn = out.getvalue().count("[fedbuff]")
    assert 8 <= drawn <= 12
    sink.close()
    assert "1000/1000 versions" in out.getvalue().splitlines()[-2]
    assert "1,000 updates at 1,000/s" in out.getvalue().splitlines()[-2]


# -- durations recorded from a run's events --------------------------------------------------------

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
