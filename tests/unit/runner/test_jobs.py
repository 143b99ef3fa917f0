"""Processes of cells that run side by side: what follows when one is killed, and their share."""

import os
import signal
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from configs import composed

from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.core.errors import Interrupted, RunError
from fl_app.core.types import GlobalModel, Update, Vector
from fl_app.report.table import Table
from fl_app.runner import jobs
from fl_app.runner.given import Given
from fl_app.runner.jobs import (
    MAX_DEATHS,
    Ended,
    Job,
    Plan,
    _SideBySide,
    _Slot,
    _with_its_share,
    carry_out,
)
from fl_app.runner.run import Ran, run_cells


def job(folder: Path, *words: str) -> Job:
    words = ("algorithm=fedbuff", "task=digits", "max_updates=20", "runtime.workers=0", *words)
    return Job("a", Plan(composed(*words)), folder, "a", experiment=folder.parent)


def killed() -> Future[Ended]:
    future: Future[Ended] = Future()
    future.set_exception(BrokenProcessPool())
    return future


@pytest.mark.parametrize("begun", [True, False])
def test_a_killed_process_has_a_successor_that_keeps_what_the_run_has(
    begun: bool, tmp_path: Path
) -> None:
    """Before it has begun, the folder has the run that `overwrite` is to replace."""
    queue: deque[Job] = deque()
    slot = _Slot()
    slot.begun = begun
    side = _SideBySide(queue, 2, show=False)
    assert side._end_of(killed(), job(tmp_path / "a", "overwrite=true"), slot) is None
    (again,) = queue
    config = again.plan.config
    assert (config.overwrite, config.resume) == ((False, "auto") if begun else (True, None))
    assert again.experiment == (None if begun else tmp_path)
    assert again.deaths == 1


def test_a_job_whose_processes_were_killed_too_often_fails(tmp_path: Path) -> None:
    queue: deque[Job] = deque([job(tmp_path / "a")])
    side = _SideBySide(queue, 2, show=False)
    for deaths in range(1, MAX_DEATHS):
        assert side._end_of(killed(), queue.popleft(), _Slot()) is None
        assert queue[0].deaths == deaths
    ended = side._end_of(killed(), queue.popleft(), _Slot())
    assert ended is not None
    assert f"{MAX_DEATHS} processes of a were killed" in str(ended.error)


def test_cores_are_shared_and_gpus_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    auto = job(tmp_path, "runtime.workers=auto")
    assert _with_its_share(auto, 2).plan.config.runtime.workers == 4
    assert _with_its_share(auto, 8).plan.config.runtime.workers == 0
    assert _with_its_share(auto, 1).plan.config.runtime.workers == "auto"
    monkeypatch.setattr(jobs, "gpus_of", lambda _: ["cuda:0", "cuda:1"])
    assert _with_its_share(auto, 2) is auto


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_idle_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """It may be the largest one when memory runs short."""
    slot = _Slot()
    try:
        assert slot.submit(job(tmp_path / "a")).result().error is None
        slot.hear()
        assert slot.begun
        assert slot.pid is not None
        first = psutil.Process(slot.pid)
        first.send_signal(signal.SIGKILL)
        first.wait(30)
        while True:  # until the executor has noticed
            future = slot.submit(job(tmp_path / "b"))
            if not isinstance(future.exception(), BrokenProcessPool):
                break
        assert future.result().error is None
        slot.hear()
        assert slot.pid != first.pid
    finally:
        slot.close()
    assert (tmp_path / "b" / "summary.json").exists()


class InterruptedAtTheEnd(FedAvgK):
    """Sends Ctrl-C to its own process while it computes the last version."""

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        if model.version == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return super().aggregate(model, updates)


def interrupted_at_the_end(folder: Path) -> Job:
    last = job(folder / "a", "algorithm=fedavg_k", "num_versions=2", "max_updates=null")
    given = Given(strategy=InterruptedAtTheEnd())
    return replace(last, plan=replace(last.plan, given=given), experiment=None)


def test_ctrl_c_at_the_end_of_a_run_begins_no_other_one(tmp_path: Path) -> None:
    """It comes too late to end the run early, and is not lost."""
    first = interrupted_at_the_end(tmp_path)
    queue = deque([first, job(tmp_path / "b")])
    ((ran, ended),) = carry_out(queue, show=False)
    assert ran is first
    assert ended.interrupted
    assert ended.summary is not None
    assert ended.summary["stopped"] == "num_versions"
    assert len(queue) == 1


@pytest.mark.parametrize("others", [0, 1])
def test_ctrl_c_at_the_end_of_the_last_run_came_too_late(others: int, tmp_path: Path) -> None:
    plans = {"a": interrupted_at_the_end(tmp_path).plan}
    plans |= {"b": job(tmp_path / "b").plan} if others else {}
    ran = run_cells(plans, tmp_path, None, show=False, figures=False)
    assert list(ran.summaries) == ["a"]
    assert ran.interrupted == (others > 0)


def test_ctrl_c_hides_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as of the checkpoint that Ctrl-C asks for."""
    ran = Ran(Table([], [], 0.9), False, {}, {"a": RunError("the disk is full")}, True)
    with pytest.raises(Interrupted):
        ran.refuse_incomplete(tmp_path)
    assert capsys.readouterr().err == "error: a: the disk is full\n"
    with pytest.raises(RunError, match="the disk is full"):
        replace(ran, interrupted=False).refuse_incomplete(tmp_path)
