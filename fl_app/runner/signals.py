"""Ctrl-C and SIGTERM end a run between two events."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

PATIENCE = 1.0  # seconds between a signal and KeyboardInterrupt
PARENT_CHECK = 1.0  # seconds between two checks of the main process of parallel runs
HANDLED = (signal.SIGINT, signal.SIGTERM)

Undisturbed = Callable[[], AbstractContextManager[None]]

received: int | None = None  # the last signal that this process received, for its exit status
_follows = False  # whether a main process decides about the runs of this process


def _nothing() -> None: ...


_stop = _nothing  # a signal calls it in a process that follows a main process


def follow() -> None:
    """Let a main process decide about the runs of this process.

    It passes signals on, and a terminal may send them here, too: the first asks a run to stop, and
    none ends this process. It ends when the main process is gone, since nothing else would end it.
    """
    global _follows

    def ask(number: int, frame: FrameType | None) -> None:
        global received
        received = number
        _stop()

    for number in HANDLED:
        signal.signal(number, ask)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    _follows = True
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def stop_requested() -> bool:
    """Whether this process follows another one and must not begin another run."""
    return _follows and received is not None


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK)
    os._exit(128 + signal.SIGTERM)


@contextmanager
def interruptible(stop: Callable[[], None], patience: float = PATIENCE) -> Iterator[Undisturbed]:
    """A context in which Ctrl-C and SIGTERM call `stop`.

    KeyboardInterrupt is raised if the context has not ended after `patience` seconds, or at a
    second signal; not in a process that follows another one (`follow`). Nothing changes where no
    handler can be set: in a thread other than the main thread, which receives no signals, and in a
    program that handles them outside of Python.

    Args:
        stop: asks the run to end.
        patience: seconds until KeyboardInterrupt is raised.

    Returns:
        A context for work that `stop` asks for and that may take long, such as a checkpoint. It
        ends the countdown to KeyboardInterrupt.
    """
    global _stop
    if _follows:
        _stop = stop
        if received is not None:
            stop()
        try:
            yield nullcontext
        finally:
            _stop = _nothing
        return
    handlers = map(signal.getsignal, HANDLED)
    if threading.current_thread() is not threading.main_thread() or None in handlers:
        yield nullcontext
        return
    # To the thread itself, so that a blocking call of the thread ends.
    timer = threading.Timer(patience, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.daemon = True
    signalled = patient = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        global received
        if signalled:
            raise KeyboardInterrupt
        signalled, received = True, number
        if not patient:
            timer.start()
        stop()

    @contextmanager
    def undisturbed() -> Iterator[None]:
        nonlocal patient
        patient = True
        if signalled:
            timer.cancel()
        try:
            yield
        finally:
            patient = False

    old_handlers = [signal.signal(number, handle) for number in HANDLED]
    try:
        yield undisturbed
    finally:
        for number, old_handler in zip(HANDLED, old_handlers, strict=True):
            signal.signal(number, old_handler)
        timer.cancel()
