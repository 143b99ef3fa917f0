"""Disks that can be full: small file systems in memory, in place of folders. They need root."""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

BALLAST = "ballast"  # the file that fills a disk
PIECE = b"\0" * (64 * 1024)


class Disk:
    """A file system of its own in place of a folder, which keeps its content.

    Args:
        folder: that is there.
        mebibytes: size of the file system.

    Raises:
        OSError: it cannot be mounted.
    """

    def __init__(self, folder: Path, mebibytes: int) -> None:
        self._folder = folder
        with tempfile.TemporaryDirectory() as aside:
            _copy(folder, Path(aside))
            options = f"size={mebibytes}m,mode=755"
            told = _call("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
            if told:
                raise OSError(f"{folder} cannot be a file system of its own: {told}")
            _copy(Path(aside), folder)

    def fill(self) -> int:
        """Use up all room; returns how many bytes that were."""
        with (self._folder / BALLAST).open("ab", buffering=0) as file, suppress(OSError):
            while file.write(PIECE):
                pass
        return (self._folder / BALLAST).stat().st_size

    def free(self) -> None:
        """Give the room back."""
        (self._folder / BALLAST).unlink(missing_ok=True)

    def close(self) -> None:
        """Put an ordinary folder with the same content in its place."""
        self.free()
        with tempfile.TemporaryDirectory() as aside:
            _copy(self._folder, Path(aside))
            _call("umount", "--lazy", str(self._folder))
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(exist_ok=True)
            _copy(Path(aside), self._folder)


def missing() -> str:
    """Why no disk can be made here; "" if one can."""
    if os.geteuid():
        return "needs root: a disk that can be full is a file system of its own"
    with tempfile.TemporaryDirectory() as folder:
        told = _call("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder)
        if not told:
            _call("umount", folder)
    return f"mounts are refused here: {told}" if told else ""


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


def _call(*command: str) -> str:
    """What a command complains about; "" if it succeeds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"
