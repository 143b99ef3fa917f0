"""Files that are whole, or a prefix that is known, whatever ends the process or fills the disk."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fl_app.core.errors import RunError

# What a disk says that is full, used up by its owner, cannot be written to any more, or fails.
FULL = (errno.ENOSPC, errno.EDQUOT)
FAILING = (errno.EROFS, errno.EIO)
TAKEN = (errno.EACCES, errno.EAGAIN)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Have what a full or failing disk raises end a run in one sentence.

    Args:
        folder: of the run.

    Raises:
        RunError: the disk is full or fails.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL + FAILING:
            raise
        mend = "once there is room, " if error.errno in FULL else "once that is mended, "
        raise RunError(
            f"{error}; the run's folder is {folder}, and its files end where that happened: {mend}"
            "resume=auto goes on from the last checkpoint, if there is one (checkpoint_every)"
        ) from error


@contextmanager
def require_writable(folder: Path) -> Iterator[None]:
    """Have one sentence say that a folder cannot be made or written to.

    Args:
        folder: of the run.

    Raises:
        ValueError: it lies below a file, or where nobody or somebody else may write.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL + FAILING:
            raise
        raise ValueError(unwritable(folder, error)) from None


def unwritable(folder: object, error: OSError) -> str:
    """Why a run cannot have its files in a folder."""
    return (
        f"{folder} cannot be written to ({error.strerror}): give another folder "
        "(hydra.run.dir=..., of a sweep hydra.sweep.dir=...)"
    )


@contextmanager
def whole(path: Path, aside: str = ".tmp") -> Iterator[IO[bytes]]:
    """A file to write to, which takes its name, and the place of an older one, once it is on disk.

    Where writing fails, nothing has changed.

    Args:
        path: its name.
        aside: added to the name while it is not whole; who writes at the same time needs another.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(path.name + aside)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # on a full disk, every attempt would leave a part of a file
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def behind(path: Path, keep: int | None) -> IO[str]:
    """A text file to write to: a new one, or behind the first `keep` bytes of what is there.

    It is locked until it is closed, or the process ends in whatever way; processes that are forked
    meanwhile do not hold the lock. Where a file system knows no locks there is none.

    Raises:
        RunError: another process writes to it; nothing was changed.
    """
    file = path.open("a" if keep is None else "r+", encoding="utf-8", newline="")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in TAKEN:
            file.close()
            raise RunError(
                f"{path} is written by another process: two runs in one folder would destroy each "
                "other's files"
            ) from None
    file.truncate(keep or 0)
    file.seek(0, os.SEEK_END)
    return file


def on_disk(file: IO[Any]) -> int:
    """Bytes written to a file, all of them on disk."""
    file.flush()
    os.fsync(file.fileno())
    return file.tell()


def _sync(folder: Path) -> None:
    """Have the folder's entries on disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
