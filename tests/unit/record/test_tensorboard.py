"""What TensorBoard is told of a run."""

import math
from collections import defaultdict

import numpy as np
import pytest

from fl_app.core.events import from_json
from fl_app.record.history import History
from fl_app.record.tensorboard import TensorBoard


class Board:
    """A history and the sink that reads it, and a writer that keeps the points of every tag."""

    def __init__(self, folder):
        self.points = defaultdict(list)
        self.history = History()
        self.sink = TensorBoard(
            folder, self.history, lambda: ([3], [1, 2]), lambda: {"bytes_up": 12.0}
        )
        self.sink.writer = self
        self.began = self.sink._began

    def add_scalar(self, tag, value, step, walltime):
        self.points[tag].append((step, round(walltime - self.began, 3), value))

    def close(self): ...

    def emit(self, kind, t, **flat):
        order = [0] * len(flat["age"]) if kind == "aggregate" else 0
        event = from_json({"kind": kind, "t": t, "order": order, **flat})
        self.history.emit(event)
        self.sink.emit(event)


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path)


def test_a_version_is_a_point_with_the_means_of_its_updates(board):
    for t, loss in ((1.0, 1.0), (2.0, 2.0)):
        board.emit("arrival", t, client=1, base_version=0, age=0, loss=loss)
    board.emit("failure", 2.0, client=2, base_version=0, reason="boom")
    board.emit("reject", 2.5, client=1, base_version=0, reason="late")
    weights = {"weight": [0.25, 0.75], "kept": 1}
    board.emit("aggregate", 2.5, version=2, client=[1, 1], age=[4, 2], **weights)
    board.emit("arrival", 3.0, client=1, base_version=0, age=0, loss=4.0)
    board.emit("aggregate", 3.0, version=3, client=[1], age=[0])
    first = {tag: points[0] for tag, points in board.points.items()}
    assert first == {
        tag: (2, 2.5, value)
        for tag, value in {
            **{"clients/loss": 1.5, "clients/staleness": 3.0},
            **{"clients/online": 3, "clients/in_flight": 2},
            **{"strategy/weight": 0.5, "strategy/kept": 1},
            **{"total/arrivals": 2, "total/failures": 1, "total/rejects": 1},
            "total/bytes_up": 12,
        }.items()
    }
    assert board.points["clients/loss"][1:] == [(3, 3.0, 4.0)]


def test_an_evaluation_is_a_point_of_its_version_however_late_it_comes(board):
    board.emit("evaluate", 7.5, version=4, accuracy=0.6)
    about = {"since": 30.0, "client_updates": 9, "clients": 4, "num_examples": 40}
    board.emit("clients_evaluate", 33.0, version=2, **about, accuracy_mean=0.5)
    assert board.points["test/accuracy"] == [(4, 7.5, 0.6)]
    assert board.points["on_clients/accuracy_mean"] == [(2, 33.0, 0.5)]


@pytest.mark.parametrize("value", [math.nan, np.float32("inf"), None, "stage one", True])
def test_what_is_no_finite_number_is_left_out(board, value):
    board.emit("evaluate", 0.0, version=0, accuracy=value)
    board.emit("aggregate", 1.0, version=1, client=[1], age=[0], stage=value, weight=[value])
    assert {"test/accuracy", "strategy/stage", "strategy/weight"}.isdisjoint(board.points)


@pytest.mark.slow  # imports TensorBoard
def test_tensorboard_reads_the_files(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = History()
    sink = TensorBoard(tmp_path, history, lambda: ([1], [2]))
    assert not list(tmp_path.iterdir())
    event = from_json({"kind": "evaluate", "t": 2.5, "version": 3, "accuracy": 0.75})
    history.emit(event)
    sink.emit(event)
    sink.close()
    files = EventAccumulator(str(tmp_path))
    files.Reload()
    assert [(e.step, e.value) for e in files.Scalars("test/accuracy")] == [(3, 0.75)]
