"""Ctrl-C and SIGTERM: first politely, between two events, and soon after at any moment."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

PATIENCE = 1.0  # seconds

Undisturbed = Callable[[], AbstractContextManager[None]]


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[Undisturbed]:
    """Within it, Ctrl-C and SIGTERM call `stop`; if that takes too long, KeyboardInterrupt comes.

    It also comes at once if somebody presses Ctrl-C a second time. In a thread other than the main
    one nothing changes: signals never arrive there.

    Returns:
        A context for what `stop` asks for and may take long: patience has no end from there on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield nullcontext
        return
    main = threading.get_ident()
    handled = (signal.SIGINT, signal.SIGTERM)
    patience: threading.Timer | None = None
    patient = False

    def first(number: int, frame: FrameType | None) -> None:
        nonlocal patience
        for number in handled:
            signal.signal(number, at_once)
        if not patient:
            patience = threading.Timer(PATIENCE, insist)
            patience.daemon = True
            patience.start()
        stop()

    def insist() -> None:
        # To the thread itself, or a call that it is blocked in would not end.
        signal.pthread_kill(main, signal.SIGINT)

    def at_once(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def cancel() -> None:
        if patience is not None:
            patience.cancel()

    @contextmanager
    def undisturbed() -> Iterator[None]:
        nonlocal patient
        patient = True
        cancel()
        try:
            yield
        finally:
            patient = False

    before = [signal.signal(number, first) for number in handled]
    try:
        yield undisturbed
    finally:
        cancel()
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)
