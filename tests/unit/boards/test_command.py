"""The command, with parts that start nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from boards import __main__ as command
from boards.row import Impossible, Row, Verdict


class Store:
    """Stands for Podman's storage."""

    discarded = 0

    def discard(self) -> None:
        Store.discarded += 1


def part(*verdicts: Verdict):
    def run(work: Path) -> Iterator[Row]:
        assert list(work.iterdir()) == []
        (work / "file").touch()
        for verdict in verdicts:
            yield Row("part", "something", verdict, 1.0, "seen")

    return run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    parts = {
        "good": part("passed", "impossible"),
        "bad": part("failed"),
    }
    monkeypatch.setattr(command, "PARTS", parts)
    monkeypatch.setattr(command, "USUAL", tuple(parts))
    monkeypatch.setattr(command, "QUICK", {"good": parts["good"]})
    monkeypatch.setattr(command, "CACHE", tmp_path)
    monkeypatch.setattr(command, "Podman", Store)
    monkeypatch.setattr(Store, "discarded", 0)
    return tmp_path


def told(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["boards", *words])
    return command.main()


def test_what_is_impossible_is_no_failure(cache, monkeypatch, capsys) -> None:
    assert told(monkeypatch, "--quick") == 0
    assert "NOT TRIED, as this machine lacks something (see above):\n  part: something" in (
        capsys.readouterr().out
    )
    rows = json.loads((cache / "table.json").read_text())
    assert [row["verdict"] for row in rows] == ["passed", "impossible"]
    assert not (cache / "work").exists()
    assert Store.discarded == 1


def test_one_failure_fails(cache, monkeypatch, capsys) -> None:
    assert told(monkeypatch, "--keep") == 1
    out = capsys.readouterr().out
    assert "part: something: failed, 1 s: seen" in out
    assert Store.discarded == 0


def test_parts_can_be_chosen(cache, monkeypatch) -> None:
    assert told(monkeypatch, "good") == 0
    with pytest.raises(SystemExit):
        told(monkeypatch, "--quick", "bad")
    with pytest.raises(SystemExit):
        told(monkeypatch, "--wheels", str(cache / "none"))
    with pytest.raises(SystemExit):
        told(monkeypatch, "--all", "good")


def test_without_a_name_the_usual_parts_are_tried_and_all_on_demand(cache, monkeypatch) -> None:
    monkeypatch.setattr(command, "USUAL", ("good",))
    assert told(monkeypatch) == 0
    assert told(monkeypatch, "--all") == 1  # the bad one, too


def test_an_interruption_leaves_no_storage(cache, monkeypatch) -> None:
    def interrupted(work: Path) -> Iterator[Row]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(command, "PARTS", {"part": interrupted})
    assert told(monkeypatch, "--all") == 130
    assert Store.discarded == 1


def test_a_part_that_cannot_begin_is_impossible(cache, monkeypatch, capsys) -> None:
    def lacking(work: Path) -> Iterator[Row]:
        raise Impossible("podman is missing: apt install podman")
        yield

    monkeypatch.setattr(command, "PARTS", {"part": lacking, "good": part("passed")})
    assert told(monkeypatch, "--all") == 0
    assert "part: all of it: impossible, 0 s: podman is missing" in capsys.readouterr().out
    rows = json.loads((cache / "table.json").read_text())
    assert [row["verdict"] for row in rows] == ["impossible", "passed"]
