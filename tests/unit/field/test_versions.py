"""Environments side by side: a trial, the way back, and interruptions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_app.field.versions import NOT_STARTED, STARTS, Record, Versions, clone


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path)


def install(versions: Versions, number: int) -> None:
    versions.new(number).mkdir()
    versions.finish(number)
    versions.switch(number)


def test_at_first_there_is_what_was_installed(versions: Versions) -> None:
    assert versions.start() is None
    assert (versions.current, versions.told, versions.record) == (0, "", Record())
    assert not versions.folder.exists()


def test_a_release_that_works_stays(versions: Versions) -> None:
    install(versions, 5)
    assert versions.told == "5, on trial"
    assert versions.start() == versions.folder / "5"
    versions.confirm()
    for _ in range(2 * STARTS):
        assert versions.start() == versions.folder / "5"
    assert versions.told == "5"


def test_a_release_whose_order_fails_is_given_up(versions: Versions) -> None:
    install(versions, 5)
    versions.start()
    versions.confirm()
    install(versions, 7)
    versions.start()
    versions.give_up("the order failed")
    assert versions.start() == versions.folder / "5"
    assert versions.told == "5, 7 failed"
    assert (versions.record.failed, versions.record.reason) == (7, "the order failed")


def test_a_release_that_cannot_even_begin_is_given_up(versions: Versions) -> None:
    install(versions, 5)
    for _ in range(STARTS):
        assert versions.start() == versions.folder / "5"
    assert versions.start() is None
    assert (versions.record.failed, versions.record.reason) == (5, NOT_STARTED)
    assert versions.start() is None


def test_only_the_release_before_is_kept(versions: Versions) -> None:
    for number in (5, 7, 9):
        install(versions, number)
    assert {path.name for path in versions.folder.iterdir() if path.is_dir()} == {
        "7",
        "9",
        "current",
    }


def test_a_half_installed_release_is_not_started(versions: Versions) -> None:
    """Power failed while it was installed, or before the link was made."""
    versions.new(5).mkdir()
    versions.switch(5)
    assert versions.start() is None
    assert versions.record.trial == 0
    install(versions, 5)
    (versions.folder / "current").unlink()
    assert versions.start() is None
    assert (versions.record.trial, versions.record.failed) == (0, 0)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"other": 1}', "\0"])
def test_a_damaged_record_is_no_record(versions: Versions, content: str) -> None:
    install(versions, 5)
    (versions.folder / "record.json").write_text(content)
    assert versions.start() == versions.folder / "5"


def test_what_was_seen_is_remembered_though_it_fails(versions: Versions) -> None:
    install(versions, 9)
    versions.give_up("")
    assert versions.record.newest == 9


def test_the_environment_to_start_is_printed_for_the_shell(versions: Versions) -> None:
    install(versions, 5)
    command = [sys.executable, "-m", "fl_app.field.versions", str(versions.kit)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout == f"{versions.folder / '5'}\n"
    versions.give_up("")
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout == f"{sys.prefix}\n"


@pytest.mark.parametrize("linked", [True, False])
def test_a_copy_of_an_environment_runs_its_own_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "bin").mkdir(parents=True)
    (one / "lib").mkdir()
    (one / "bin" / "python").symlink_to("/bin/echo")
    (one / "lib" / "module.py").write_text("x = 1")
    command = one / "bin" / "command"
    command.write_text(f"#!{one}/bin/python\n# {one}/lib stays")
    command.chmod(0o755)
    (one / ".complete").touch()
    if not linked:

        def refused(source: str, target: str) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "link", refused)
    clone(one, two)
    assert (two / "bin" / "command").read_text() == f"#!{two}/bin/python\n# {one}/lib stays"
    assert command.read_text().startswith(f"#!{one}/")
    assert subprocess.run([two / "bin" / "command"], capture_output=True).returncode == 0
    assert os.readlink(two / "bin" / "python") == "/bin/echo"
    same = (two / "lib" / "module.py").stat().st_ino == (one / "lib" / "module.py").stat().st_ino
    assert same == linked
    assert (one / ".complete").exists()
    assert not (two / ".complete").exists()


def test_the_record_is_plain_json(versions: Versions) -> None:
    install(versions, 5)
    assert json.loads((versions.folder / "record.json").read_text())["trial"] == 5
