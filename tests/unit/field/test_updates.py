"""A device takes an update from a server that may hand out anything."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from fake_superlink import superlink
from packaging.tags import Tag

from fl_app.field import updates
from fl_app.field.kit import Kit, new_kit
from fl_app.field.packages import InstallError
from fl_app.field.release import FOLDER, LIST, LOCK, File, Refused, Release, write_release
from fl_app.field.updates import READY, Source, take, wanted
from fl_app.field.versions import Versions

PROJECT, OTHER = "fl_app-0.2.0-py3-none-any.whl", "omegaconf-2.4.0-py3-none-any.whl"
# What uv and the doctor are asked is appended to a file; each does as another file says.
UV = '#!/bin/sh\necho "$@" >>{folder}/asked\n. {folder}/uv\n'
PYTHON = "#!/bin/sh\n. {folder}/doctor\n"


class Device:
    """A device's folder, its server's release, and an environment whose programs are made up.

    Attributes:
        release: folder that the server hands out.
        does: what a program does, as a line of the shell.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        new_kit(folder / "out", nodes=1, hosts=["127.0.0.1"])
        self.release = folder / "out" / "server" / FOLDER
        self.environment = folder / "venv"
        (self.environment / "bin").mkdir(parents=True)
        for name, text in (("uv", UV), ("python", PYTHON)):
            path = self.environment / "bin" / name
            path.write_text(text.format(folder=folder))
            path.chmod(0o755)
        monkeypatch.setattr(sys, "prefix", str(self.environment))
        self.does = {"uv": ":", "doctor": "exit 0"}
        self.number = self.make()

    def make(self, wheels: tuple[str, ...] = (PROJECT, OTHER)) -> int:
        """Let the authority make a release."""
        paths = [self.folder / name for name in wheels]
        for path in paths:
            path.write_text(path.name)
        lock = self.folder / LOCK
        lock.write_text("omegaconf==2.4.0\n")
        return write_release(self.release, self.folder / "out" / "ca", lock, paths)

    def take(self) -> bool:
        for name, action in self.does.items():
            (self.folder / name).write_text(action)
        with superlink(self.folder / "out" / "server", gate="online", release=self.release) as port:
            kit = Kit.read(self.folder / "out" / "node-0", {"SUPERLINK": f"127.0.0.1:{port}"})
            return take(kit, Source(kit))

    @property
    def asked(self) -> list[str]:
        """What uv was asked."""
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def versions(self) -> Versions:
        return Versions(self.folder / "out" / "node-0")


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(tmp_path, monkeypatch)


def test_a_release_is_installed_beside_and_put_on_trial(device: Device) -> None:
    assert device.take()
    versions = device.versions
    new = versions.environment(device.number)
    assert versions.start() == new
    assert versions.record.trial == device.number
    (install,) = [line for line in device.asked if " install " in line]
    assert "--offline --no-index --no-deps --reinstall-package fl-app" in install
    assert install.endswith(f"/{PROJECT} {versions.folder}/downloads/{OTHER}")
    assert f"--python {new}/bin/python" in install
    assert not device.take()  # it is in use


def test_without_a_release_nothing_happens(device: Device) -> None:
    shutil.rmtree(device.release)
    assert not device.take()
    assert device.versions.start() is None


@pytest.mark.parametrize("name", [PROJECT, LOCK, OTHER])
def test_a_changed_file_is_not_installed(device: Device, name: str) -> None:
    path = device.release / name
    path.write_text(path.read_text()[::-1])
    with pytest.raises(Refused, match="is not the file that was signed"):
        device.take()
    assert not device.asked
    assert device.versions.start() is None


def test_a_file_without_end_is_not_fetched_to_its_end(device: Device) -> None:
    (device.release / PROJECT).write_bytes(b"0" * 3_000_000)
    with pytest.raises(Refused, match=r"has more than the \d+ bytes that it may have"):
        device.take()


def test_a_file_that_is_not_there(device: Device) -> None:
    (device.release / OTHER).unlink()
    with pytest.raises(Refused, match=f"has not got {OTHER}"):
        device.take()


def test_an_older_release_is_not_taken(device: Device, tmp_path: Path) -> None:
    """Its signature is genuine."""
    shutil.copytree(device.release, tmp_path / "old")
    newest = device.make()
    assert device.take()
    device.versions.confirm()
    shutil.rmtree(device.release)
    shutil.copytree(tmp_path / "old", device.release)
    with pytest.raises(Refused, match=f"release {device.number} is older than release {newest}"):
        device.take()
    assert device.versions.current == newest


def test_a_release_that_was_given_up_is_not_taken_again(device: Device) -> None:
    assert device.take()
    device.versions.give_up("its order failed")
    assert not device.take()
    device.make()
    assert device.take()


def test_a_release_that_lacks_a_package_is_refused_for_good(device: Device) -> None:
    told = "The package fl-app requires zarr>=3, but it is not installed"
    device.does["uv"] = f'case "$*" in *check*{device.versions.folder}*) echo "{told}" >&2 ;; esac'
    with pytest.raises(InstallError, match=r"is not complete: .* requires zarr>=3"):
        device.take()
    assert device.versions.record.failed == device.number
    assert not device.versions.environment(device.number).exists()
    assert not device.take()


def test_what_was_missing_before_is_no_fault_of_a_release(device: Device) -> None:
    """A board without torch has what the installer left out."""
    device.does["uv"] = 'case "$*" in *check*) echo "fl-app requires torch" >&2 ;; esac'
    assert device.take()


def test_a_release_in_which_the_doctor_finds_something_waits(device: Device) -> None:
    device.does["doctor"] = "echo ' WRONG  disk  0.1 GiB free'; exit 1"
    for _ in range(2):
        with pytest.raises(InstallError, match="its doctor says WRONG  disk"):
            device.take()
    assert device.versions.current == 0
    device.does["doctor"] = "exit 0"
    assert device.take()
    assert sum(" install " in line for line in device.asked) == 1


def test_an_interrupted_installation_begins_again(device: Device) -> None:
    path = device.versions.new(device.number)
    path.mkdir()
    (path / "half").touch()
    assert device.take()
    assert not (path / "half").exists()


def test_the_command_says_why(device: Device, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates.os, "nice", lambda by: 0)
    monkeypatch.setattr(sys, "argv", ["updates", str(device.folder / "out" / "node-0")])
    monkeypatch.setenv("SUPERLINK", "127.0.0.1:1")
    assert updates.main() == 1
    assert "no update: [Errno 111] Connection refused" in capsys.readouterr().out
    assert READY not in (0, 1)


def test_only_wheels_that_fit_are_wanted() -> None:
    names = [
        "fl_app-0.2.0-py3-none-any.whl",
        "numpy-2.4.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "numpy-2.4.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "numpy-2.4.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "rich-14.0-py3-none-any.whl",
        "zarr-3.0-py3-none-any.whl",
        "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    ]
    release = Release(1, "0.2.0", {name: File("", 0) for name in [LOCK, *names]})
    tags = [
        Tag("cp311", "cp311", "manylinux_2_28_x86_64"),
        Tag("cp311", "cp311", "manylinux_2_17_x86_64"),
        Tag("py3", "none", "any"),
    ]
    installed = {"fl-app": "0.2.0", "numpy": "2.3.0", "rich": "14.0"}
    assert wanted(release, installed, tags) == [names[0], names[2], names[5]]
    assert wanted(release, {**installed, "torch": "2.13.0"}, tags)[2] == names[6]


def test_the_list_is_not_read_without_end(device: Device) -> None:
    (device.release / LIST).write_text(json.dumps("x" * updates.LONGEST))
    with pytest.raises(Refused, match="has more than"):
        device.take()
