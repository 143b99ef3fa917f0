"""Ctrl-C and SIGTERM: at once where nothing is to be saved, and else politely, between two events.

This module needs the standard library only: `fl_app.__main__` uses it before all other imports.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType

PATIENCE = 1.0  # seconds
PARENT_CHECK = 1.0  # seconds between two looks for the main process of a parallel sweep
HANDLED = (signal.SIGINT, signal.SIGTERM)

Undisturbed = Callable[[], AbstractContextManager[None]]

received: int | None = None  # the last signal that arrived here, for the exit status
_watched = False  # whether this process ends with its parent
noted = False  # in a process of a parallel sweep: that a signal came there


def exit_status() -> int:
    """What a shell reports for a command that the last signal ended: 130 for Ctrl-C."""
    return 128 + (received or signal.SIGINT)


@contextmanager
def ending_at_once(jobs: Callable[[], list[int]] = list) -> Iterator[None]:
    """Within it, Ctrl-C and SIGTERM end this process with one line, whatever it is doing.

    An exception would not do: imports and callbacks of libraries swallow it or print a traceback.
    Files are never half written, for all are put in place when they are whole.

    Args:
        jobs: ids of the processes that carry out a sweep's jobs. If there are any, the first signal
            is passed on to them, and this process goes on until they have ended.
    """

    def end(number: int, frame: FrameType | None) -> None:
        global received
        first, received = received is None, number
        if first and (running := jobs()):
            # The other signal: this one they may have had, too, from the terminal or the batch
            # system, and the same one twice would not let them write a checkpoint.
            other = signal.SIGTERM if number == signal.SIGINT else signal.SIGINT
            for process in running:
                with suppress(ProcessLookupError):
                    os.kill(process, other)
            return
        with suppress(OSError, RuntimeError, ValueError):  # closed, or in the middle of a write
            sys.stdout.flush()
        with suppress(OSError):
            os.write(2, b"\ninterrupted\n" if os.isatty(2) else b"interrupted\n")
        os._exit(exit_status())

    with _handled_by(end):
        yield


def note() -> None:
    """From here on Ctrl-C and SIGTERM are only `noted` here, except within `interruptible`.

    The process is a job of a parallel sweep. It ends when the sweep's main process is gone, which
    alone could end it otherwise.
    """
    global _watched

    def remember(number: int, frame: FrameType | None) -> None:
        global noted
        noted = True

    if threading.current_thread() is threading.main_thread():
        for number in HANDLED:
            signal.signal(number, remember)
    if not _watched:
        _watched = True
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK)
    os._exit(128 + signal.SIGTERM)


@contextmanager
def interruptible(stop: Callable[[], None], patience: float = PATIENCE) -> Iterator[Undisturbed]:
    """Within it, Ctrl-C and SIGTERM call `stop`; if that takes too long, KeyboardInterrupt comes.

    It also comes at once if somebody presses Ctrl-C a second time. In a thread other than the main
    one nothing changes: signals never arrive there.

    Args:
        stop: asks for an end.
        patience: seconds until KeyboardInterrupt comes.

    Returns:
        A context for what `stop` asks for and may take long: patience has no end from there on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield nullcontext
        return
    main = threading.get_ident()
    seen: set[int] = set()
    timer: threading.Timer | None = None
    patient = impatient = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal timer
        global received
        if impatient or number in seen:
            raise KeyboardInterrupt
        seen.add(number)
        if len(seen) > 1:  # Ctrl-C and SIGTERM: a sweep's main process passed it on
            return
        received = number
        if not patient:
            timer = threading.Timer(patience, insist)
            timer.daemon = True
            timer.start()
        stop()

    def insist() -> None:
        nonlocal impatient
        impatient = True
        # To the thread itself, or a call that it is blocked in would not end.
        signal.pthread_kill(main, signal.SIGINT)

    def cancel() -> None:
        if timer is not None:
            timer.cancel()

    @contextmanager
    def undisturbed() -> Iterator[None]:
        nonlocal patient
        patient = True
        cancel()
        try:
            yield
        finally:
            patient = False

    with _handled_by(handle):
        if noted:
            stop()
        try:
            yield undisturbed
        finally:
            cancel()


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = [signal.signal(number, handler) for number in HANDLED]
    try:
        yield
    finally:
        for number, previous in zip(HANDLED, before, strict=True):
            signal.signal(number, previous)
