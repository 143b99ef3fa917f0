"""What TensorBoard is told of a run, and when."""

import math
from collections import defaultdict

import numpy as np
import pytest

from fl_app.core.events import from_json
from fl_app.record.history import History
from fl_app.record.tensorboard import POINT_EVERY, TensorBoard


class Board:
    """A history and the sink that reads it, a wall clock, and a writer that keeps its points."""

    def __init__(self, folder):
        self.now = 100.0
        self.points = defaultdict(list)
        self.history = History()
        self.sink = TensorBoard(
            folder,
            self.history,
            lambda: ([3], [1, 2]),
            lambda: {"bytes_up": 12.0},
            wall=lambda: self.now,
            began=1000.0,
            writer=lambda _: self,
        )

    def add_scalar(self, tag, value, step, walltime):
        self.points[tag].append((step, walltime, value))

    def close(self): ...

    def emit(self, kind, t, **flat):
        order = [0] * len(flat["age"]) if kind == "aggregate" else 0
        event = from_json({"kind": kind, "t": t, "order": order, **flat})
        self.history.emit(event)
        self.sink.emit(event)

    def arrive(self, t, loss):
        self.emit("arrival", t, client=1, base_version=0, age=0, loss=loss)


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path)


def evaluate(board, t, version, **metrics):
    board.emit("evaluate", t, version=version, **metrics)


def test_an_evaluation_is_a_point_at_its_version_and_at_the_time_of_the_run(board):
    evaluate(board, 0.0, 0, accuracy=0.1)
    evaluate(board, 7.5, 4, accuracy=0.6)
    assert board.points["test/accuracy"] == [(0, 1000.0, 0.1), (4, 1007.5, 0.6)]


def test_what_came_between_two_points_is_one_mean(board):
    """Losses 1 and 2: 1.5. Ages 0, 4 and 2: 2. Weights .5, .25 and .75: .5."""
    evaluate(board, 0.0, 0, accuracy=0.1)
    board.arrive(1.0, 1.0)
    board.emit("aggregate", 1.0, version=1, client=[1], age=[0], weight=[0.5], kept=3)
    board.arrive(2.0, 2.0)
    assert "clients/loss" not in board.points
    board.now += POINT_EVERY
    board.emit("aggregate", 2.0, version=2, client=[1], age=[4, 2], weight=[0.25, 0.75], kept=1)
    assert board.points["clients/loss"] == [(2, 1002.0, 1.5)]
    assert board.points["clients/staleness"] == [(2, 1002.0, 2.0)]
    assert board.points["strategy/weight"] == [(2, 1002.0, 0.5)]
    assert board.points["strategy/kept"] == [(2, 1002.0, 2.0)]
    board.now += POINT_EVERY
    board.arrive(3.0, 4.0)
    assert board.points["clients/loss"][1:] == [(2, 1003.0, 4.0)]
    assert len(board.points["clients/staleness"]) == 1  # there was none since


def test_totals_are_written_with_every_point(board):
    evaluate(board, 0.0, 0, accuracy=0.1)
    board.arrive(1.0, 0.5)
    board.emit("failure", 2.0, client=2, base_version=0, reason="boom")
    board.emit("reject", 3.0, client=1, base_version=0, reason="late")
    board.sink.close()
    last = {tag: points[-1][2] for tag, points in board.points.items()}
    totals = ("total/arrivals", "total/failures", "total/rejects", "total/bytes_up")
    assert [last[tag] for tag in totals] == [1, 1, 1, 12]
    assert (last["clients/online"], last["clients/in_flight"]) == (3, 2)


@pytest.mark.parametrize("value", [math.nan, np.float32("inf"), None, "stage one", True])
def test_what_is_no_finite_number_is_left_out(board, value):
    evaluate(board, 0.0, 0, accuracy=value)
    board.emit("aggregate", 1.0, version=1, client=[1], age=[0], stage=value, weight=[value])
    board.sink.close()
    assert {"test/accuracy", "strategy/stage", "strategy/weight"}.isdisjoint(board.points)


def test_what_clients_measured_is_a_point_of_its_version(board):
    about = {"since": 30.0, "client_updates": 9, "clients": 4, "num_examples": 40}
    board.emit("clients_evaluate", 33.0, version=20, **about, accuracy_mean=0.5)
    assert board.points["on_clients/accuracy_mean"] == [(20, 1033.0, 0.5)]


@pytest.mark.slow  # imports TensorBoard
def test_tensorboard_reads_the_files(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = History()
    sink = TensorBoard(tmp_path, history, lambda: ([1], [2]), began=1000.0)
    assert not list(tmp_path.iterdir())
    event = from_json({"kind": "evaluate", "t": 2.5, "version": 3, "accuracy": 0.75})
    history.emit(event)
    sink.emit(event)
    sink.close()
    files = EventAccumulator(str(tmp_path))
    files.Reload()
    found = [(e.step, e.wall_time, e.value) for e in files.Scalars("test/accuracy")]
    assert found == [(3, 1002.5, 0.75)]
