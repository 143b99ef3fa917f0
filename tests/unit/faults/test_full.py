"""Rows of full disks and of old copies are judged rightly, on runs that are only told."""

from pathlib import Path
from typing import Any

import pytest

from faults import full
from faults.field import Disappointed
from fl_app.core.events import Aggregated, Arrived, Dispatched, Event, Failed

REASON = f"OSError: {full.FULL}: [Errno 28] No space left on device"


class Told:
    """A run of client 0, whose events come in turn: one with each look.

    Args:
        counts: of its updates; None = an order that failed for its full disk.
    """

    def __init__(self, folder: Path, counts: list[float | None]) -> None:
        self.left, self.found = list(enumerate(counts)), list[Event]()
        self.folder, self.field, self.disks = folder, self, {"node-0": self, "server": self}
        self.freed, self.waits = 0, 0

    def fill(self) -> None: ...

    def free(self) -> None:
        self.freed += 1

    def kit(self, name: str) -> Path:
        return self.folder / name

    def processes(self, where: str, name: str) -> list[Any]:
        return []

    def events(self) -> list[Event]:
        return list(self.found)

    def step(self) -> None:
        number, count = self.left.pop(0)
        t = float(number)
        self.found.append(Dispatched(t, 0, number, 0))
        if count is None:
            self.found.append(Failed(t, 0, number, 0, REASON))
        else:
            self.found.append(Arrived(t, 0, number, 0, age=0, loss=count))

    def until(self, true: Any, what: str) -> None:
        while not true():
            if not self.left:
                raise Disappointed(what)
            self.step()


def seen(injection: Any, run: Any) -> list[Any]:
    return list(injection.inject(run))


def test_a_device_with_a_full_disk_goes_on_with_its_state(tmp_path: Path) -> None:
    run = Told(tmp_path, [None, None, 3.0, 4.0])
    run.found = [Arrived(0.0, 0, 90, 0, age=0, loss=1.0), Arrived(0.0, 0, 91, 0, age=0, loss=2.0)]
    ((name, told),) = seen(full.node_disk_full(0), run)
    assert name == "node-disk-full"
    assert told.startswith(f"2 failures: {full.FULL}; answers 0 s after")
    assert run.freed == 1


def test_a_state_that_was_lost_on_a_full_disk_is_a_problem(tmp_path: Path) -> None:
    run = Told(tmp_path, [None, None, 1.0])
    run.found = [Arrived(0.0, 0, 91, 0, age=0, loss=2.0)]
    with pytest.raises(Disappointed, match="the state of count 2 was lost: 1 follows"):
        seen(full.node_disk_full(0), run)


@pytest.mark.parametrize(("after", "kept", "problem"), [
    (1.0, True, ""), (3.0, True, "with an old state: its count is 3"), (1.0, False, "old state"),
])  # fmt: skip
def test_an_old_copy_must_not_go_on(tmp_path: Path, after: float, kept: bool, problem: str) -> None:
    state = tmp_path / "node-0" / "state" / "fl_app" / "run-7" / "client-0.npz"
    state.parent.mkdir(parents=True)
    state.write_text("2")
    if kept:
        state.with_suffix(".older").touch()
    run = Told(tmp_path, [3.0, 4.0, after])
    if problem:
        with pytest.raises(Disappointed, match=problem):
            seen(full.restored(0), run)
    else:
        assert "begins anew" in seen(full.restored(0), run)[0][1]


class Server(Told):
    """A run whose server's disk fills up; it goes on, a version later each time it is looked at.

    Args:
        impatient: whether it is submitted again though there is no room.
    """

    def __init__(self, folder: Path, impatient: bool = False) -> None:
        super().__init__(folder, [])
        self.number, self.impatient = 0, impatient

    def told(self, text: str) -> int:
        assert text in "waiting for room on the disk: 0 MiB"
        return self.waits

    def submitted(self) -> int:
        return 1 + bool(self.freed or (self.impatient and self.waits))

    def wait(self, seconds: float) -> None: ...

    def until(self, true: Any, what: str) -> None:
        for _ in range(9):
            if self.freed:
                self.number += 1
                t = float(self.number)
                self.found.append(Arrived(t, 0, self.number, 0, age=0, loss=1.0))
                self.found.append(Aggregated(t, self.number, [0], [self.number], [0]))
            self.waits += 1
            if true():
                return
        raise Disappointed(what)


def test_a_server_with_a_full_disk_waits_and_goes_on(tmp_path: Path) -> None:
    ((name, told),) = seen(full.server_disk_full([0], 1.0), Server(tmp_path))
    assert name == "server-disk-full"
    assert "submitted 1 times; goes on 0 s after there is room, from version 0" in told


def test_a_run_that_is_submitted_on_a_full_disk_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(Disappointed, match="submitted again though its disk is full"):
        seen(full.server_disk_full([0], 1.0), Server(tmp_path, impatient=True))
