"""Writes files that survive a crash or a full disk: atomically, or as an append-only log."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fl_app.core.errors import RunError

# Errors of a full disk or an exhausted quota, and of a disk that is read-only or fails.
FULL = (errno.ENOSPC, errno.EDQUOT)
FAILING = (errno.EROFS, errno.EIO)
DISK = FULL + FAILING
LOCKED = (errno.EACCES, errno.EAGAIN)

ANOTHER = (
    "another folder (hydra.run.dir=..., of a sweep hydra.sweep.dir=..., of a search "
    "search.folder=..., of a benchmark --folder ..., of flwr run and in Python output=...)"
)
RESUME = "resume=auto goes on from the last checkpoint, if there is one (checkpoint_every)"


@contextmanager
def disk_errors_as_run_errors(folder: Path, advice: str = RESUME) -> Iterator[None]:
    """Turn the `OSError` of a full or failing disk into a `RunError` that says what to do next.

    Args:
        folder: of the run.
        advice: what to do once the disk works again.

    Raises:
        RunError: the disk is full or fails.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK:
            raise
        condition = "once there is room, " if error.errno in FULL else "once the disk works again, "
        raise RunError(
            f"{error}; the run's folder is {folder}, and its files end where that happened: "
            f"{condition}{advice}"
        ) from error


@contextmanager
def require_writable(folder: Path) -> Iterator[None]:
    """Turn the `OSError` of a folder that cannot be created or written to into a `ValueError`.

    Args:
        folder: of the run.

    Raises:
        ValueError: the folder lies below a file, or the user may not write there.
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK:
            raise
        raise ValueError(unwritable(folder, error)) from None


def unwritable(folder: object, error: OSError) -> str:
    """The message for a folder that cannot hold a run's files."""
    return f"{folder} cannot be written to ({error.strerror}): give {ANOTHER}"


@contextmanager
def atomic_write(path: Path, aside: str = ".tmp") -> Iterator[IO[bytes]]:
    """Write a file that replaces `path` only after a flush to disk.

    If writing fails, `path` has not changed.

    Args:
        path: of the file.
        aside: suffix of the temporary file; concurrent writers need different suffixes.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = path.with_name(path.name + aside)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # otherwise every attempt on a full disk would leave a partial file
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str, aside: str = ".tmp") -> None:
    """Write a text as `atomic_write` does."""
    with atomic_write(path, aside) as file:
        file.write(text.encode())


def cache_folder() -> Path:
    """The folder of the cache: FL_APP_CACHE, or ``fl_app`` in the user's cache folder."""
    if folder := os.environ.get("FL_APP_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fl_app"


def make_folder(folder: Path) -> None:
    """Create a folder with its parents, so that they outlive a power failure; it may exist.

    Raises:
        OSError: a folder cannot be created.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def open_log(path: Path, keep: int | None) -> IO[str]:
    """Open a text file exclusively for appending, truncated to `keep` bytes.

    The lock is released when the file is closed or the process ends. Forked processes do not
    inherit it. On a file system without locks the file is not locked.

    Args:
        path: of the file.
        keep: bytes to keep of an existing file; None = create the file, or empty it.

    Raises:
        FileNotFoundError: `keep` is given, and there is no file.
        RunError: another process writes to the file, or it has less than `keep` bytes; it has not
            changed.
    """
    file = path.open("a" if keep is None else "r+", encoding="utf-8", newline="")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in LOCKED:
            file.close()
            raise RunError(
                f"{path} is written by another process: two runs in one folder would destroy each "
                "other's files"
            ) from None
    size = os.fstat(file.fileno()).st_size
    if size < (keep or 0):  # `truncate` would fill it up with zeros
        file.close()
        raise RunError(
            f"{path} has {size} bytes, of which the checkpoint needs the first {keep}: restore the "
            "file, or begin in a new folder"
        )
    file.truncate(keep or 0)
    file.seek(0, os.SEEK_END)
    return file


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk: what was created, renamed or removed in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
