"""Ctrl-C and SIGTERM: first politely, between two events, and soon after at any moment."""

import _thread
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
        patience.start()
        stop()

    def at_once(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    patience = threading.Timer(PATIENCE, _thread.interrupt_main)
    patience.daemon = True
    handled = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, first) for number in handled]
    try:
        yield
    finally:
        patience.cancel()
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)
