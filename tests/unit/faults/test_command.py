"""The command, on federations that are not there."""

import json
from pathlib import Path
from typing import Any

import pytest

from faults import __main__ as command
from faults.field import Disappointed
from faults.injections import Injection, Seen


class Absent:
    """A federation that cannot start."""

    stopped: list[Path] = []  # noqa: RUF012  # looked at by the tests

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def kit(self, name: str) -> Path:
        return self.folder / "kit" / name

    def start(self, **settings: Any) -> None:
        raise Disappointed("not within 1 s: 5 nodes are online")

    def stop(self) -> bool:
        self.stopped.append(self.folder)
        return True


class Steady:
    """A run that nothing can disturb, of a federation that notes when it is mended."""

    def __init__(self) -> None:
        self.field = self
        self.mended = 0

    def mend(self) -> None:
        self.mended += 1


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "Field", Absent)
    Absent.stopped.clear()
    return Absent.stopped


def test_what_is_never_injected_fails_and_everything_is_stopped(
    absent: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["faults", "--only", "nan", "link-cut"])
    assert command.main() == 1
    (table,) = Path("outputs").glob("faults-*/table.json")
    rows = json.loads(table.read_text())
    assert [(row["fault"], row["verdict"]) for row in rows] == [
        ("nan", "failed"),
        ("link-cut", "failed"),
    ]
    expected = ["never injected", "the run: not within 1 s: 5 nodes are online"]
    assert all(row["problems"] == expected for row in rows)
    assert [folder.name for folder in absent] == ["clients", "links"]
    assert "never injected" in capsys.readouterr().out


def test_all_rows_are_there_and_what_is_untested_says_why(
    absent: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["faults"])
    assert command.main() == 1
    (table,) = Path("outputs").glob("faults-*/table.json")
    rows = {row["fault"]: row for row in json.loads(table.read_text())}
    monkeypatch.setattr("sys.argv", ["faults", "--list"])
    capsys.readouterr()
    assert command.main() == 0
    assert capsys.readouterr().out.split() == list(rows)
    assert rows["packet-loss"]["verdict"] == "untested"
    assert "netem" in rows["packet-loss"]["untested"]


def test_a_fault_alone_does_not_hide_what_others_told() -> None:
    def inject(run: Any) -> Seen:
        yield "first", "failure: as it should"
        yield "second", Disappointed("got an arrival")
        raise Disappointed("not within 240 s: client 3 takes third")

    run = Steady()
    rows = command.observe(Injection(["first", "second", "third"], inject, [3]), run)
    assert [(row.seen, row.problems) for row in rows.values()] == [
        ("failure: as it should", []),
        ("", ["got an arrival"]),
        ("", ["not within 240 s: client 3 takes third"]),
    ]
    assert run.mended == 1
