"""Ctrl-C and SIGTERM: they end a run between two events, and anything else at once.

This module needs the standard library only, because `fl_app.__main__` uses it before all other
imports.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType

PATIENCE = 1.0  # seconds between a signal and KeyboardInterrupt
PARENT_CHECK = 1.0  # seconds between two checks of the main process of a parallel sweep
HANDLED = (signal.SIGINT, signal.SIGTERM)

Undisturbed = Callable[[], AbstractContextManager[None]]

received: int | None = None  # the last signal that this process received, for its exit status
_watched = False  # whether this process ends with its parent
noted = False  # whether this job of a parallel sweep received a signal


def exit_status() -> int:
    """The exit status of a command that the last signal ended: 130 for Ctrl-C."""
    return 128 + (received or signal.SIGINT)


@contextmanager
def ending_at_once(
    jobs: Callable[[], list[int]] = list, again: Callable[[], str] = str
) -> Iterator[None]:
    """A context in which Ctrl-C and SIGTERM end this process at once, with one line.

    An exception is not enough: imports and callbacks of libraries swallow it or print a traceback.
    No file is left half written, because files are replaced only when they are complete.

    Args:
        jobs: returns the ids of the processes that run a sweep's jobs. If there are any, the first
            signal is passed on to them, and this process continues until they have ended.
        again: returns the command that goes on, for the line; "" = there is nothing to go on with.
    """

    def end(number: int, frame: FrameType | None) -> None:
        global received
        first, received = received is None, number
        if first and (running := jobs()):
            # The jobs may have received this signal, too, from the terminal or the batch system.
            # They get the other one: the same signal twice would end them without a checkpoint.
            other = signal.SIGTERM if number == signal.SIGINT else signal.SIGINT
            for process in running:
                with suppress(ProcessLookupError):
                    os.kill(process, other)
            return
        with suppress(OSError, RuntimeError, ValueError):  # it may be closed, or inside a write
            sys.stdout.flush()
        command = again()
        line = f"interrupted; to go on: {command}\n" if command else "interrupted\n"
        with suppress(OSError):
            os.write(2, (f"\n{line}" if os.isatty(2) else line).encode())
        os._exit(exit_status())

    with _handled_by(end):
        yield


def note() -> None:
    """Make Ctrl-C and SIGTERM only set `noted` in this process, except within `interruptible`.

    The process is a job of a parallel sweep. It ends when the sweep's main process is gone, because
    nothing else would end it then.
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
    """A context in which Ctrl-C and SIGTERM call `stop`.

    KeyboardInterrupt is raised if the context has not ended after `patience` seconds, or at a
    second Ctrl-C. Nothing changes where no handler can be set: in a thread other than the main
    thread, which receives no signals, and in a program that handles them outside of Python.

    Args:
        stop: asks the run to end.
        patience: seconds until KeyboardInterrupt is raised.

    Returns:
        A context for work that `stop` asks for and that may take long, such as a checkpoint. It
        ends the countdown to KeyboardInterrupt.
    """
    if not _may_handle():
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
        if len(seen) > 1:  # Ctrl-C and SIGTERM: a sweep's main process has passed one on
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
        # Sent to the thread itself, so that a blocking call of the thread ends.
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


def _may_handle() -> bool:
    """Whether handlers can be set here, and those of before be set again."""
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        for number in HANDLED:
            handler = signal.getsignal(number)
            if handler is None:  # other code than Python's has set it
                return False
            signal.signal(number, handler)
    except ValueError:  # in an interpreter within another one
        return False
    return True


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = [signal.signal(number, handler) for number in HANDLED]
    try:
        yield
    finally:
        for number, previous in zip(HANDLED, before, strict=True):
            signal.signal(number, previous)
