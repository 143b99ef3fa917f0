"""A cache of unpacked arrays on disk, mapped into memory, so that processes and runs share them.

Every entry is a folder of ``.npy`` files, which appears whole or not at all. You may delete it.
"""

import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fl_app.core.files import cache_folder
from fl_app.core.types import Array

Arrays: TypeAlias = dict[str, Array]

FORMAT = 4  # of the cached arrays; a new number makes old entries invalid
UNFIT = (OSError, ValueError, EOFError)  # there is no entry, or a power failure cut it short

log = logging.getLogger(__name__)


def file_facts(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Path, size and time of change of each file, to detect that one has changed."""
    stats = [(str(file.resolve()), file.stat()) for file in sorted(files) if file.is_file()]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def cached(name: str, state: object, make: Callable[[], Arrays]) -> Arrays:
    """The result of `make`, from the cache if the last call had the same `state`.

    A cache that cannot be written to only costs time. So do processes that need the same arrays at
    the same time: each of them makes them. Only the user can read an entry.

    Args:
        name: first part of the entry's name. The cache keeps one entry of a name and removes the
            one before.
        state: all that the result depends on.
        make: makes the arrays.
    """
    folder = cache_folder() / f"{name}-{digest(state)}"
    with suppress(*UNFIT):
        return _load(folder)
    arrays = make()
    try:
        _store(arrays, folder, name)
    except OSError as error:
        if not folder.is_dir():  # no other process was faster
            log.warning("unpacked data cannot be kept in %s: %s", folder.parent, error)
    with suppress(*UNFIT):  # another process may put an entry of its own in place
        return _load(folder)
    return arrays


def _load(folder: Path) -> Arrays:
    # Copy on write: torch needs writable arrays, and processes share the pages that nothing writes
    # to.
    files = {*folder.iterdir()}
    arrays = {path.stem: np.load(path, mmap_mode="c") for path in files}
    if {*folder.iterdir()} != files:  # of an entry that another process has just replaced
        raise OSError(f"{folder} has changed")
    return arrays


def digest(value: object) -> str:
    """Sixteen letters and digits that stand for a value."""
    return hashlib.sha256(repr((FORMAT, value)).encode()).hexdigest()[:16]


def _store(arrays: Arrays, folder: Path, name: str) -> None:
    """Write all arrays or none, in place of the entries of this name."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        inner = Path(scratch) / "arrays"
        inner.mkdir(mode=0o700)
        for key, array in arrays.items():
            np.save(inner / f"{key}.npy", array)
        for old in folder.parent.iterdir():
            if old.name.rpartition("-")[0] == name:
                with suppress(FileNotFoundError):  # another process was faster
                    old.rename(Path(scratch) / old.name)  # no process loads a half of it
        inner.rename(folder)
