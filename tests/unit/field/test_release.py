"""A release is what the authority has signed, all of it, and never an older one."""

import json
from pathlib import Path
from typing import Any

import pytest

from fl_app.field.certificates import new_authority
from fl_app.field.release import (
    LIST,
    LOCK,
    PURPOSE,
    Refused,
    check_file,
    check_newer,
    read_release,
    write_release,
)

WHEEL = "fl_app-0.2.0-py3-none-any.whl"
OTHER = "numpy-2.4.0-cp311-cp311-manylinux_2_28_aarch64.whl"


class Authority:
    """An authority, the lock file that it signs, and wheels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ca"
        self.folder.mkdir(parents=True)
        new_authority(self.folder, 10)
        self.root = self.folder / "ca.crt"
        self.out = folder / "release"
        self.lock = folder / LOCK
        self.lock.write_text("# pins\nnumpy==2.3.0 ; python_version < '3.11'\nnumpy==2.4.0\n")
        self.wheels = [folder / WHEEL, folder / OTHER]
        for wheel in self.wheels:
            wheel.write_bytes(wheel.name.encode())

    def release(self) -> int:
        return write_release(self.out, self.folder, self.lock, self.wheels)

    def read(self) -> Any:
        return read_release((self.out / LIST).read_bytes(), self.root)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "mine")
    made.release()
    return made


def test_a_release_names_all_of_its_files(authority: Authority) -> None:
    release = authority.read()
    assert (release.project, release.wheels) == ("0.2.0", [WHEEL, OTHER])
    assert {path.name for path in authority.out.iterdir()} == {LIST, *release.files}
    for name, file in release.files.items():
        check_file(authority.out / name, file)


@pytest.mark.parametrize("name", [WHEEL, LOCK])
@pytest.mark.parametrize("content", [b"", b"import evil", None])
def test_a_changed_file_is_refused(authority: Authority, name: str, content: bytes | None) -> None:
    file = authority.read().files[name]
    path = authority.out / name
    old = path.read_bytes()
    path.write_bytes(bytes([old[0] ^ 1]) + old[1:] if content is None else content)
    with pytest.raises(Refused, match=f"{name} is not the file that was signed"):
        check_file(path, file)


def test_a_changed_list_is_refused(authority: Authority) -> None:
    signed = json.loads((authority.out / LIST).read_text())
    for change in ('"size": 1', '"number": 9'):
        told = signed["release"].replace(change.partition(" ")[0], change + ', "x"', 1)
        content = json.dumps({**signed, "release": told}).encode()
        with pytest.raises(Refused, match="not signed by the authority in"):
            read_release(content, authority.root)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"release": "{}", "signature": "-"}', b"\xff", b"3"]
)
def test_what_is_no_list_is_refused(authority: Authority, content: bytes) -> None:
    with pytest.raises(Refused, match="no list that can be read"):
        read_release(content, authority.root)


def test_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    other.release()
    with pytest.raises(Refused, match="not signed by the authority in"):
        read_release((other.out / LIST).read_bytes(), authority.root)


def test_a_signature_for_another_purpose_is_refused(authority: Authority, monkeypatch: Any) -> None:
    """The authority signs certificates with the same key."""
    monkeypatch.setattr("fl_app.field.release.PURPOSE", b"")
    authority.release()
    monkeypatch.setattr("fl_app.field.release.PURPOSE", PURPOSE)
    with pytest.raises(Refused, match="not signed"):
        authority.read()


def test_an_older_release_is_refused(authority: Authority) -> None:
    old = authority.read()
    number = authority.release()  # in the same second
    assert number == old.number + 1
    check_newer(authority.read(), old.number)
    check_newer(authority.read(), number)
    with pytest.raises(Refused, match=f"release {old.number} is older than release {number}"):
        check_newer(old, number)


def test_a_wheel_that_contradicts_the_lock_file_is_not_signed(authority: Authority) -> None:
    before = (authority.out / LIST).read_bytes()
    wheel = authority.wheels[1].with_name("numpy-2.5.0-py3-none-any.whl")
    wheel.touch()
    authority.wheels[1] = wheel
    with pytest.raises(ValueError, match=r"wheel=numpy-2.5.0.* must be of the version in .*2.4.0"):
        authority.release()
    assert (authority.out / LIST).read_bytes() == before


@pytest.mark.parametrize("count", [0, 2])
def test_a_release_has_one_wheel_of_this_project(authority: Authority, count: int) -> None:
    second = authority.wheels[0].with_name("fl_app-0.3.0-py3-none-any.whl")
    second.touch()
    authority.wheels = [authority.wheels[1], *[authority.wheels[0], second][:count]]
    with pytest.raises(ValueError, match="must be exactly one of fl-app"):
        authority.release()


def test_a_file_that_is_no_wheel_is_not_signed(authority: Authority) -> None:
    authority.wheels.append(authority.wheels[0].with_name("torch.whl"))
    with pytest.raises(ValueError, match=r"torch.whl must have the name of a wheel"):
        authority.release()
