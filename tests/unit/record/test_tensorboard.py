import math

import numpy as np
import pytest

from fl_app.core.events import from_json
from fl_app.record.history import History
from fl_app.record.tensorboard import POINT_EVERY, WHO_EVERY, TensorBoard


class Wall:
    """A wall clock that a test turns by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Pages:
    """A writer that keeps what it is told: tag -> (step, walltime, value)."""

    def __init__(self):
        self.scalars = {}
        self.texts = []
        self.closed = False

    def add_scalar(self, tag, value, step, walltime):
        self.scalars.setdefault(tag, []).append((step, walltime, value))

    def add_text(self, tag, text, step, walltime):
        self.texts.append((tag, text, step, walltime))

    def close(self):
        self.closed = True


@pytest.fixture
def wall():
    return Wall()


@pytest.fixture
def pages():
    return Pages()


class Board:
    """A history and the sink that reads it; they take in the lines of a log."""

    def __init__(self, folder, *args, **settings):
        self.history = History()
        self.sink = TensorBoard(folder, self.history, *args, **settings)
        self.close = self.sink.close

    def emit(self, flat):
        if flat["kind"] == "aggregate":
            flat = {"order": [0] * len(flat["age"]), **flat}
        event = from_json({"order": 0, **flat})
        self.history.emit(event)
        self.sink.emit(event)


@pytest.fixture
def board(tmp_path, wall, pages):
    return Board(
        tmp_path,
        lambda: ([3], [1, 2]),
        lambda: {"bytes_up": 12.0},
        wall=wall,
        began=1000.0,
        writer=lambda folder: pages,
    )


def dispatch(t, client):
    return {"kind": "dispatch", "t": t, "client": client, "version": 0}


def arrival(t, client, loss=0.5):
    return {
        "kind": "arrival",
        "t": t,
        "client": client,
        "base_version": 0,
        "age": 0,
        "loss": loss,
    }


def aggregate(t, version, age, **report):
    return {"kind": "aggregate", "t": t, "version": version, "client": [1], "age": age, **report}


def evaluate(t, version, **metrics):
    return {"kind": "evaluate", "t": t, "version": version, **metrics}


def test_evaluation_is_a_point_at_its_version_and_at_the_time_of_the_runs_clock(board, pages):
    board.emit(evaluate(0.0, 0, accuracy=0.1, loss=2.0))
    board.emit(evaluate(7.5, 4, accuracy=0.6, loss=1.0))
    assert pages.scalars["test/accuracy"] == [(0, 1000.0, 0.1), (4, 1007.5, 0.6)]
    assert pages.scalars["test/loss"] == [(0, 1000.0, 2.0), (4, 1007.5, 1.0)]


def test_what_came_between_two_points_is_one_mean(board, pages, wall):
    """Losses 1 and 2: 1.5. Ages 0, 4 and 2: mean 2, at most 4. Weights .5 and (.25 + .75) / 2."""
    board.emit(evaluate(0.0, 0, accuracy=0.1))
    board.emit(arrival(1.0, 1, 1.0))
    board.emit(aggregate(1.0, 1, [0], weight=[0.5], kept=3))
    board.emit(arrival(2.0, 2, 2.0))
    assert "clients/loss" not in pages.scalars
    wall.now += POINT_EVERY
    board.emit(aggregate(2.0, 2, [4, 2], weight=[0.25, 0.75], kept=1))
    assert pages.scalars["clients/loss"] == [(2, 1002.0, 1.5)]
    assert pages.scalars["clients/staleness"] == [(2, 1002.0, 2.0)]
    assert pages.scalars["clients/staleness_max"] == [(2, 1002.0, 4)]
    assert pages.scalars["strategy/weight"] == [(2, 1002.0, 0.5)]
    assert pages.scalars["strategy/kept"] == [(2, 1002.0, 2.0)]
    wall.now += POINT_EVERY
    board.emit(arrival(3.0, 1, 4.0))
    assert pages.scalars["clients/loss"][1:] == [(2, 1003.0, 4.0)]
    assert len(pages.scalars["clients/staleness"]) == 1  # there was none since


def test_totals_and_who_is_there_are_written_with_every_point(board, pages, wall):
    board.emit(evaluate(0.0, 0, accuracy=0.1))
    for event in (
        arrival(1.0, 1),
        {"kind": "failure", "t": 2.0, "client": 2, "base_version": 0, "reason": "boom"},
        {"kind": "reject", "t": 3.0, "client": 1, "base_version": 0, "reason": "late"},
        {"kind": "reject", "t": 3.0, "reason": "duplicate"},
    ):
        board.emit(event)
    board.close()
    last = {tag: values[-1][2] for tag, values in pages.scalars.items()}
    assert last["total/arrivals"] == 1
    assert last["total/failures"] == 1
    assert last["total/rejects"] == 2
    assert last["total/bytes_up"] == 12.0
    assert last["clients/online"] == 3
    assert last["clients/in_flight"] == 2
    assert pages.closed


def test_clients_are_told_one_by_one_now_and_then_and_in_the_end(board, pages, wall):
    board.emit(dispatch(0.0, 9))
    board.emit(dispatch(0.0, 1))
    board.emit(arrival(4.0, 1, 0.25))
    board.emit({"kind": "failure", "t": 5.0, "client": 9, "base_version": 0, "reason": "a | b\n"})
    assert len(pages.texts) == 1
    wall.now += WHO_EVERY
    board.emit(dispatch(6.0, 2))
    assert len(pages.texts) == 2
    board.close()
    tag, text, _, walltime = pages.texts[-1]
    assert (tag, walltime, len(pages.texts)) == ("clients/who", 1006.0, 3)
    assert text.splitlines()[2:] == [
        "1 | works | 4.0 s | 1 | 0 | update, loss 0.25",
        "2 | works | 6.0 s | 0 | 0 | order, version 0",
        "3 | idle | 0.0 s | 0 | 0 | ",
        "9 | away | 5.0 s | 0 | 1 | failure: a / b",
    ]


@pytest.mark.parametrize("value", [math.nan, np.float32("inf"), None, "stage one", True])
def test_what_is_no_finite_number_is_left_out(board, pages, value):
    board.emit(evaluate(0.0, 0, accuracy=value))
    board.emit(aggregate(1.0, 1, [0], stage=value, weight=[value]))
    board.close()
    assert {"test/accuracy", "strategy/stage", "strategy/weight"}.isdisjoint(pages.scalars)


def test_sink_that_saw_nothing_writes_nothing(tmp_path):
    Board(tmp_path / "tensorboard", lambda: ((), ())).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # imports TensorBoard
def test_tensorboard_reads_the_files(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = Board(tmp_path, lambda: ([1], [2]), began=1000.0)
    board.emit(evaluate(0.0, 0, accuracy=0.25))
    board.emit(evaluate(2.5, 3, accuracy=0.75))
    board.close()
    files = EventAccumulator(str(tmp_path))
    files.Reload()
    found = [(e.step, e.wall_time, e.value) for e in files.Scalars("test/accuracy")]
    assert found == [(0, 1000.0, 0.25), (3, 1002.5, 0.75)]
    assert "clients/who/text_summary" in files.Tags()["tensors"]


def test_what_clients_measured_is_a_point_of_its_version(tmp_path, pages):
    board = Board(tmp_path, lambda: ((), ()), began=1000.0, writer=lambda _: pages)
    figures = {"accuracy_mean": 0.5, "accuracy_std": 0.25, "accuracy_worst_decile": 0.125}
    about = {"since": 30.0, "client_updates": 9, "clients": 4, "num_examples": 40}
    board.emit({"kind": "evaluate_order", "t": 30.0, "client": 3, "version": 20})
    board.emit({"kind": "clients_evaluate", "t": 33.0, "version": 20, **about, **figures})
    board.close()
    assert pages.scalars["on_clients/accuracy_mean"] == [(20, 1033.0, 0.5)]
    assert pages.scalars["on_clients/accuracy_worst_decile"] == [(20, 1033.0, 0.125)]
    assert "evaluates version 20" in pages.texts[-1][1]
