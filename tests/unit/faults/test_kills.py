"""Random kills are judged rightly, on a federation that is only told."""

import random
import re
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
        other: whether every version becomes another one a minute after it was published.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        silent: int | None = None,
        twice: bool = False,
        other: bool = False,
    ) -> None:
        self.now, self.silent, self.twice, self.other = 10.0, silent, twice, other
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
                t = float(second) + (0.5 if self.other and self.now > second + 60.0 else 0.0)
                found.append(Aggregated(t, version, [client], [order], [0]))
        return found + ([found[-1]] if self.twice else [])


def problems(told: Told, times: int = 6, together: int = 1) -> list[str]:
    rng = random.Random(0)
    return kills.kill_often(told, told, times, rng, together)  # type: ignore[arg-type]


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


def test_several_are_killed_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told(monkeypatch)
    assert problems(told, times=8, together=3) == []
    assert len(told.killed) == 8
    said = capsys.readouterr().out
    assert said.count("next version 0 s") + said.count("next version 1 s") == 3
    counts = re.findall(r"(\d+) kills; back: median", said)
    assert sum(map(int, counts)) == 8


def test_a_version_that_becomes_another_one_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = problems(Told(monkeypatch, other=True), times=30)
    assert found
    assert all(text.endswith("was rolled back") for text in found)


def test_an_interruption_does_not_lose_the_judgement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told(monkeypatch, twice=True)

    def interrupted(field: Any, where: str, name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kills, "kill", interrupted)
    assert problems(told)[-1] == "the log does not hold every version once"
    assert "interrupted after 0 kills" in capsys.readouterr().out


def test_only_some_kinds_of_processes_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    rng = random.Random(0)
    assert kills.kill_often(told, told, 4, rng, only=["flwr-serverapp"]) == []  # type: ignore[arg-type]
    assert told.killed == 4 * [("server", "flwr-serverapp")]
