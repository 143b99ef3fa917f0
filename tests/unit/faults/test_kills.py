"""Random kills are judged rightly, on a federation that is only told."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from faults import kills
from faults.field import NODES
from fl_app.core.events import Aggregated, Arrived, Event


class Told:
    """A federation and its run: an update of every client arrives every second.

    Args:
        silent: a client that answers no more after the first kill.
        twice: whether a version is published a second time at the end.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, silent: int | None = None, twice: bool = False
    ) -> None:
        self.now, self.silent, self.twice = 10.0, silent, twice
        self.killed: list[tuple[str, str]] = []
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(kills, "time", clock)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def processes(self, where: str, name: str) -> list[Any]:
        return [SimpleNamespace(kill=lambda: self.killed.append((where, name)))]

    def events(self) -> list[Event]:
        found: list[Event] = []
        version = 0
        for second in range(int(self.now)):
            for client in range(NODES):
                if client == self.silent and second > 10:
                    continue
                order = second * NODES + client
                found.append(Arrived(float(second), client, order, 0, age=0))
                version += 1
                found.append(Aggregated(float(second), version, [client], [order], [0]))
        return found + ([found[-1]] if self.twice else [])


def problems(told: Told, times: int = 6) -> list[str]:
    return kills.kill_often(told, told, times, random.Random(0))  # type: ignore[arg-type]


def test_clients_that_all_come_back_are_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    assert problems(told) == []
    assert len(told.killed) == 6
    assert {name for _, name in told.killed} <= {*kills.SERVER, *kills.NODE}


def test_a_client_that_stays_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = problems(Told(monkeypatch, silent=3), times=1)
    assert len(found) == 1
    assert found[0].endswith("clients [3] did not answer within 120 s")


def test_a_version_that_is_published_twice_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = problems(Told(monkeypatch, twice=True), times=1)
    assert found[-1] == "the log does not hold every version once"
    assert "never arrived" in found[0]
