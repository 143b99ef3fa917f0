"""Disks that can be full, in place of folders."""

import os
import shutil
from pathlib import Path

import pytest

from faults.disks import Disk, missing


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_disk_is_full_until_it_is_freed_and_keeps_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "before").write_text("before")
    disk = Disk(tmp_path, 1)
    try:
        assert os.path.ismount(tmp_path)
        assert disk.fill() > 900_000
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "during").write_bytes(b"0" * 100_000)
        disk.free()
        (tmp_path / "after").write_text("after")
    finally:
        disk.close()
    assert not os.path.ismount(tmp_path)
    assert (tmp_path / "before").read_text() == "before"
    assert (tmp_path / "after").read_text() == "after"
    assert not (tmp_path / "ballast").exists()


def test_what_keeps_a_disk_from_being_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing().startswith("needs root")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    assert "No such file" in missing() or shutil.which("mount")
