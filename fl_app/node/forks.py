"""Processes that start by forking, and so share the memory of all that is imported already.

Flower's executor, its ClientApps and the training process import the same packages as the
SuperNode. Started one by one they take these 90 MB each; forked from one process they take them
once. Only processes without threads are forked.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

VARIABLE = "FL_APP_RESERVE"  # descriptor and process id of a ClientApp's reserve
M_ARENA_MAX = -8  # from malloc.h
SHARED = ("flwr.client", "flwr.clientapp", "omegaconf", "numpy.random", "psutil", "threadpoolctl")
LONGEST = 1 << 16  # bytes of what a reserve is told
START_OF_ARGUMENTS, END_OF_ARGUMENTS = 45, 46  # fields of /proc/self/stat after the state

_own: list[str] = []  # names of this package's modules when `settle` was called
_forgotten: list[object] = []

# What a reserve runs, with its words and descriptors.
Run = Callable[[list[str], list[int]], None]


class Reserve:
    """A forked process that waits until it is told what to run.

    Create it before this process has threads. It ends with this process if it is told nothing.

    Args:
        run: called in the forked process with what `start` is given.

    Attributes:
        pid: of the forked process.
    """

    def __init__(self, run: Run) -> None:
        self._ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self._ours.close()
            _wait(theirs, run)
        theirs.close()

    def start(self, words: Sequence[str], descriptors: Sequence[int] = ()) -> None:
        """Let the process run.

        Args:
            words: what to run; the process is called so from now on.
            descriptors: the process gets copies of them.

        Raises:
            OSError: the process has ended.
        """
        tell(self._ours, words, descriptors)
        self._ours.close()

    def offer(self) -> None:
        """Let this process start the reserve by `taken`, whatever code it imports."""
        os.environ[VARIABLE] = f"{self._ours.fileno()} {self.pid}"

    def dismiss(self) -> None:
        """End the process if it was told nothing."""
        waits = os.environ.pop(VARIABLE, None) is not None
        self._ours.close()
        if waits:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)


def taken() -> tuple[socket.socket, int] | None:
    """The reserve that this process was offered, to `tell` once: its socket and its process id."""
    told = os.environ.pop(VARIABLE, None)
    if told is None:
        return None
    descriptor, pid = map(int, told.split())
    return socket.socket(fileno=os.dup(descriptor)), pid


def tell(reserve: socket.socket, words: Sequence[str], descriptors: Sequence[int] = ()) -> None:
    """As `Reserve.start`."""
    socket.send_fds(reserve, [json.dumps(list(words)).encode()], descriptors)


def _wait(told: socket.socket, run: Run) -> NoReturn:
    """Wait for a word, and run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    data, descriptors, _, _ = socket.recv_fds(told, LONGEST, 8)
    if not data:  # the process that forked this one needs it no more
        os._exit(0)
    told.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words = json.loads(data)
    rename(words)
    run(words, descriptors)
    sys.exit()


def settle() -> None:
    """Prepare this process to be forked: what lives now is not touched without need.

    What ClientApps and training processes import of other packages is imported once, here.
    """
    for name in SHARED:
        with suppress(ImportError):
            import_module(name)
    _own[:] = _own_names()
    gc.collect()
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):  # glibc
            library.mallopt(M_ARENA_MAX, 2)  # else every thread keeps memory of its own
            library.malloc_trim(0)
    gc.freeze()


def trim() -> None:
    """Give memory that was freed back to the system."""
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)


def forget() -> None:
    """Forget this package's modules: a server may have sent another version of them.

    They stay in memory. To free them, or only to look at the names of all modules, would be to
    write to memory, and so to copy what is shared.
    """
    for name in _own or _own_names():
        if name in sys.modules:
            _forgotten.append(sys.modules.pop(name))


def _own_names() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "fl_app"]


def rename(words: Sequence[str]) -> None:
    """Let ``ps`` show other words than those that this process was started with (Linux).

    They are cut off where there is no more room.
    """
    with suppress(OSError, ValueError, IndexError):
        # The name in parentheses, the second field, may hold spaces.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[START_OF_ARGUMENTS]), int(fields[END_OF_ARGUMENTS])
        room = end - begin
        if begin > 0 and room > 0:
            text = "\0".join(words).encode()[: room - 1]
            ctypes.memmove(begin, text.ljust(room, b"\0"), room)
