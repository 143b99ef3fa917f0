"""Ctrl-C and SIGTERM: first politely, between two events, and soon after at any moment."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 1.0  # seconds


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Within it, Ctrl-C and SIGTERM call `stop`; if that takes too long, KeyboardInterrupt comes.

    In a thread other than the main one nothing changes: signals never arrive there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, at_once)
        signal.signal(signal.SIGTERM, at_once)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        stop()

    def at_once(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    handled = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, first) for number in handled]
    alarm = signal.signal(signal.SIGALRM, at_once)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)
