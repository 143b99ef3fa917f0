"""A cache of unpacked arrays on disk, mapped into memory, with digests that reveal damage.

Every entry is a folder of ``.npy`` files with a ``digest.json`` that holds the size and the SHA-256
of each file. A folder without digests, or with files that do not fit them, is unpacked again.
"""

import fcntl
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_app.core.files import atomic_write

Arrays: TypeAlias = dict[str, NDArray[Any]]

FORMAT = 1  # of the cached arrays; a new number makes old entries invalid
DIGEST = "digest.json"
SMALL = 8 << 20  # bytes: a file up to this size, such as labels, is hashed whenever it is opened

# Environment variable: larger files that this process or its parents have hashed. An entry contains
# the file's time of change, so a file that was written to since is hashed again.
CHECKED = "FL_APP_CHECKED"

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """The folder of the cache: FL_APP_CACHE, or ``fl_app`` in the user's cache folder."""
    if chosen := os.environ.get("FL_APP_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fl_app"


def cached(
    name: str,
    state: object,
    make: Callable[[], Arrays],
    private: tuple[object, object] | None = None,
) -> Arrays:
    """The result of `make`, from the cache if `make` has run with the same `state` before.

    A cache that cannot be written to only costs time. An empty result is not cached.

    Args:
        name: first part of the entry's name.
        state: all that the result depends on.
        make: makes the arrays.
        private: of a user's own data, the place where they lie and what tells that they have
            changed. Only the user can read the entry, and once they have changed, the entries of
            what was there before are removed. None = public data.
    """
    key = _hash((FORMAT, state))
    earlier: list[Path] = []
    if private is not None:
        place, content = private
        base = f"{name}-{_hash((os.getuid(), place))[:8]}-"
        key = f"{_hash(content)[:8]}-{key}"
        name, own = base[:-1], f"{base}{key[:9]}"
        with suppress(OSError):
            found = [path for path in cache_folder().iterdir() if path.name.startswith(base)]
            earlier = [path for path in found if not path.name.startswith(own)]
    folder = cache_folder() / f"{name}-{key}"
    with suppress(_Unfit):
        return _read(folder)
    with _alone(folder):
        try:
            return _read(folder)  # another process may have unpacked it meanwhile
        except _Unfit as problem:
            if folder.exists():
                log.warning("%s is unpacked again: %s", name, problem)
        arrays = make()
        if arrays and _store(arrays, folder, None if private is None else earlier):
            with suppress(_Unfit):  # the disk may fail
                return _read(folder)
        return arrays


class _Unfit(Exception):
    """A folder that cannot be used."""


def _read(folder: Path) -> Arrays:
    """The arrays of a folder.

    Raises:
        _Unfit: there is no such folder, or its files do not fit their digests.
    """
    arrays = {}
    try:
        expected = json.loads((folder / DIGEST).read_bytes())
        for name, digest in expected.items():
            path = folder / name
            size = path.stat().st_size
            if size != digest["size"]:
                raise _Unfit(f"{path} has {size} bytes instead of {digest['size']}")
            if _sha256(path, known=digest["sha256"]) != digest["sha256"]:
                raise _Unfit(f"{path} was changed: its SHA-256 is another one")
            # Copy on write: torch needs writable arrays, and processes share the pages that nothing
            # writes to.
            arrays[path.stem] = np.load(path, mmap_mode="c")
    except FileNotFoundError as error:
        raise _Unfit(f"{error.filename} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Unfit(f"{folder / DIGEST} cannot be used ({error})") from error
    return arrays


def _sha256(path: Path, known: str) -> str:
    """SHA-256 of a file; `known` for a large file that was hashed before and has not changed."""
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        times = (stat.st_mtime_ns, stat.st_ctime_ns)
        entry = ":".join(map(str, (known[:16], stat.st_dev, stat.st_ino, stat.st_size, *times)))
        checked = os.environ.get(CHECKED, "").split()
        if stat.st_size > SMALL and entry in checked:
            return known
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if stat.st_size > SMALL and found == known:
        os.environ[CHECKED] = " ".join((*checked, entry))
    return found


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _store(arrays: Arrays, folder: Path, replaced: list[Path] | None) -> bool:
    """Write all arrays or none; returns false if the cache cannot be written to.

    Args:
        arrays: by name.
        folder: of the entry.
        replaced: entries that a private one replaces; None = it is a public one.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as made:
            inner = Path(made) / "arrays"
            inner.mkdir(mode=0o777 if replaced is None else 0o700)
            digests = {}
            for name, array in arrays.items():
                path = inner / f"{name}.npy"
                np.save(path, array)
                with path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                digests[path.name] = {"size": path.stat().st_size, "sha256": sha256}
            with atomic_write(inner / DIGEST) as file:
                file.write(json.dumps(digests, indent=1).encode() + b"\n")
            with suppress(FileNotFoundError):
                # Renamed, not deleted: processes that have mapped the old arrays keep them.
                folder.rename(Path(made) / "unfit")
            inner.rename(folder)
            for place, old in enumerate(replaced or []):
                with suppress(FileNotFoundError):
                    old.rename(Path(made) / f"replaced-{place}")
    except OSError as error:
        log.warning("unpacked data cannot be kept in %s: %s", folder.parent, error)
        return False
    return True


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time unpack into `folder`, if the file system can lock."""
    descriptor = None
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # The lock is on the cache's own folder: a lock file could never be removed.
        descriptor = os.open(folder.parent, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
