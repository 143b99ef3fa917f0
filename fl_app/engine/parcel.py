"""Objects for processes that are spawned: they inherit no memory, and are told where to find it."""

import mmap
import os
import pickle
import weakref
from multiprocessing import reduction
from typing import Any

from fl_app.engine.arena import anonymous_file


class Parcel:
    """An object, pickled once, that spawned processes unpack.

    It lies in a file without a name, which they inherit. A pipe would carry the data of a task anew
    to every process, and multiprocessing would put tensors into `/dev/shm`, which containers keep
    small.

    Args:
        content: anything that can be pickled.

    Raises:
        ValueError: it cannot be pickled.
    """

    def __init__(self, content: object) -> None:
        self._file = anonymous_file()
        weakref.finalize(self, os.close, self._file)
        try:
            with open(self._file, "wb", closefd=False) as file:
                pickle.dump(content, file, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                "runtime.device needs worker processes that inherit nothing, and what they train "
                f"with cannot be pickled ({error}): define classes and functions in a module, not "
                "in a notebook or in another function, or set runtime.workers=0"
            ) from error

    def open(self) -> Any:
        """The object; a new one with every call."""
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as memory:
            return pickle.loads(memory)

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self._file),)


def _received(file: Any) -> Parcel:
    parcel = object.__new__(Parcel)
    parcel._file = file.detach()
    return parcel
