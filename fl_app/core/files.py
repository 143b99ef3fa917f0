"""Files that are whole, or a prefix that is known, whatever ends the process or fills the disk."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fl_app.core.errors import RunError

# What a disk says that is full, used up by its owner, cannot be written to any more, or fails.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Have a disk that takes no more end a run with its reason.

    Args:
        folder: of the run.

    Raises:
        RunError: the disk is full or fails.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise RunError(
            f"{folder} could not be written to: {os.strerror(error.errno)}. Files end where it "
            "happened; with room again, resume=auto goes on from the last checkpoint, if there is "
            "one (checkpoint_every=...)"
        ) from error


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
    """A text file to write to: a new one, or behind the first `keep` bytes of what is there."""
    if keep is not None:
        os.truncate(path, keep)
    return path.open("w" if keep is None else "a", encoding="utf-8", newline="")


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
