"""Evaluation beside the engine: the sinks receive the same events in the same order."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from helpers import MeanDelta, Recorder, Run, run

from fl_app.core.errors import RunError
from fl_app.core.types import Order, Scores, Upload, Vector
from fl_app.engine.evaluation import Background
from fl_app.engine.workers import Workers
from fl_app.schedule import Buffered

SCHEDULE = Buffered(concurrency=5, buffer_size=3)


def figures(version: int, vector: Vector) -> dict[str, float]:
    return {"accuracy": version / 100, "loss": float(np.square(vector).sum())}


class Measures:
    def __init__(self, test: Callable[[int, Vector], Mapping[str, float]]) -> None:
        self._test = test

    def train(self, order: Order) -> Upload:
        raise NotImplementedError

    def score(self, order: Order) -> Scores:
        return Scores(self._test(order.base_version, order.vector), 1)


def beside(
    test: Callable[[int, Vector], Mapping[str, float]] = figures, instead: Any = None
) -> Background:
    return Background(Workers(Measures(test), 1, 2), instead)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def trained(evaluate: Any, **more: Any) -> Run:
    return run(SCHEDULE, evaluate=evaluate, **{"eval_every": 2, **more})


class Gate:
    """A measurement that takes until somebody asks for its result."""

    def __init__(self, log: list[str], version: int, vector: Vector) -> None:
        self._log, self._version, self._vector = log, version, vector.copy()

    def done(self) -> bool:
        return False

    def result(self) -> Mapping[str, float]:
        self._log.append(f"waits for {self._version}")
        return figures(self._version, self._vector)


@pytest.mark.parametrize("workers", [0, 2])
def test_same_events_as_an_engine_that_waits(workers: int) -> None:
    waited, went_on = trained(figures), trained(beside(), workers=workers)
    assert went_on.events == waited.events
    assert went_on.final == waited.final
    assert len(waited.kind("evaluate")) == 11


def test_the_engine_goes_on_until_the_next_evaluation() -> None:
    log: list[str] = []

    class Strategy(MeanDelta):
        def aggregate(self, model: Any, updates: Any) -> Vector:
            log.append(f"makes {model.version + 1}")
            return super().aggregate(model, updates)

    result = trained(
        lambda version, vector: Gate(log, version, vector), num_versions=4, strategy=Strategy()
    )
    assert log == [
        *("makes 1", "makes 2", "waits for 0", "makes 3", "makes 4", "waits for 2"),
        "waits for 4",
    ]
    assert result.events == trained(figures, num_versions=4).events


def test_a_limit_of_accuracy_ends_the_run_at_the_same_version() -> None:
    runs = [
        trained(evaluate, target_accuracy=0.06)
        for evaluate in (figures, beside(), lambda *at: Gate([], *at))
    ]
    assert [each.outcome.version for each in runs] == [6, 6, 6]
    assert runs[0].events == runs[1].events == runs[2].events


def test_a_checkpoint_finds_all_events_sent() -> None:
    seen: list[list[tuple[str, Any]]] = []
    for evaluate in (figures, lambda *at: Gate([], *at)):
        recorder = Recorder()
        states: list[tuple[str, Any]] = []

        def save(version: int, states: Any = states, recorder: Recorder = recorder) -> None:
            states.append((version, len(recorder.events)))

        trained(evaluate, sinks=[recorder], checkpoint=save, checkpoint_every=3)
        seen.append(states)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 6


def test_a_version_that_cannot_be_measured_beside_is_measured_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = os.getpid()

    def dies(version: int, vector: Vector) -> dict[str, float]:
        if version == 4 and os.getpid() != mine:
            os.kill(os.getpid(), signal.SIGKILL)
        if version == 8 and os.getpid() != mine:
            raise OSError("no memory")
        return figures(version, vector)

    result = trained(beside(dies, figures))
    assert result.events == trained(figures).events
    assert caplog.messages == [
        "version 4 is evaluated in the main process: worker process died (exit code -9)",
        "version 8 is evaluated in the main process: OSError: no memory",
    ]


def test_without_another_way_the_run_ends_and_says_why() -> None:
    def fails(version: int, vector: Vector) -> dict[str, float]:
        if version == 4:
            raise OSError("out of memory")
        return figures(version, vector)

    result = trained(beside(fails))
    error = "version 4 could not be evaluated: OSError: out of memory"
    assert isinstance(result.outcome.error, RunError)
    assert str(result.outcome.error) == error
    assert [event["version"] for event in result.kind("evaluate")] == [0, 2]
    # What had happened meanwhile is told.
    assert result.events[-1]["t"] > result.kind("evaluate")[-1]["t"]


def test_ctrl_c_leaves_what_was_measured() -> None:
    class CtrlC:
        def emit(self, event: Any) -> None:
            if getattr(event, "version", 0) == 5 and event.kind == "aggregate":
                raise KeyboardInterrupt

        def close(self) -> None: ...

    results = [trained(evaluate, sinks=[CtrlC()]) for evaluate in (figures, beside())]
    for result in results:
        assert result.outcome.stopped == "interrupted"
        assert result.kind("evaluate")[-1]["version"] == 4
