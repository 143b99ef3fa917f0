"""A run whose training takes as long as one says: what limits it is known."""

from dataclasses import replace
from typing import Any

import pytest
from configs import composed
from helpers import HeadedQuadratic

from fl_app.core.types import Upload
from fl_app.runner import batch_size, imagined
from fl_app.runner.batch_size import _Costs, _rate
from fl_app.runner.factory import build_components
from fl_app.runner.placement import Placement

CLIENTS, AT_WORK = 40, 16


@pytest.fixture
def free_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes no time."""
    monkeypatch.setattr(imagined.time, "process_time", lambda: 0.0)


def rate(size: int, seconds: dict[int, float], placement: Placement, *words: str) -> float:
    config = composed(
        "algorithm=fedasync",
        f"algorithm.schedule.concurrency={AT_WORK}",
        f"num_clients={CLIENTS}",
        "runtime.workers=0",
        *words,
    )
    task = HeadedQuadratic.scattered(CLIENTS)
    components = replace(build_components(config, task), placement=placement)
    initial = components.initial
    return _rate(components, _Costs(seconds, Upload(initial, "model", 3, 0.5)), size, AT_WORK)


@pytest.mark.usefixtures("free_engine")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_one_at_a_time_every_worker_is_busy(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size.os, "sched_getaffinity", lambda pid: range(8))
    found = rate(1, {1: 0.1}, Placement("cpu", workers))
    assert found == pytest.approx(10 * max(workers, 1), rel=0.1)


@pytest.mark.usefixtures("free_engine")
def test_workers_are_no_faster_than_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size.os, "sched_getaffinity", lambda pid: range(2))
    assert rate(1, {1: 0.1}, Placement("cpu", 6)) == pytest.approx(20, rel=0.1)


@pytest.mark.usefixtures("free_engine")
def test_processes_on_one_gpu_count_as_one() -> None:
    found = rate(1, {1: 0.1}, Placement("cpu", 6, ("cuda:0", "cuda:1")))
    assert found == pytest.approx(20, rel=0.1)


@pytest.mark.usefixtures("free_engine")
def test_batches_that_are_awaited_leave_workers_idle() -> None:
    """A batch takes as long as one client: the gain is its mean size, less what is awaited."""
    gpu = Placement("cpu", 1, ("cuda:0",))
    rates = {size: rate(size, {1: 0.1, AT_WORK: 0.1}, gpu) for size in (1, 4, AT_WORK)}
    assert rates[1] == pytest.approx(10, rel=0.1)
    assert 25 < rates[4] < 41
    assert rates[4] < rates[AT_WORK] < 160


def test_the_engine_takes_the_time_that_it_takes() -> None:
    """Training takes none: what is left is at most what this machine does in a second."""
    found = rate(1, {1: 0.0}, Placement("cpu", 1))
    assert 100 < found < 1e6


def test_a_run_that_has_no_update_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = imagined.Stopwatch(imagined.ImaginedWorkers(Any, 1, None, float), 4, 1.0)  # type: ignore[arg-type]
    assert watch.rate() == 0
