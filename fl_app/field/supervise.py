"""Keep a process running: started again when it ends, with delays that double up to a minute.

A SuperNode that died is refused (code 2004) as long as it still counts as online, up to 60 s after
its last heartbeat, so a single quick restart is not enough and restarts without delay only burn the
board's one spare core.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

FIRST, LAST = 5.0, 60.0  # seconds before the first and the later restarts
STEADY = 120.0  # seconds after which a process counts as having run well
GRACE = 15.0  # seconds from asking a process to end to ending it


def delays() -> Iterator[float]:
    """Seconds before each further attempt: 5, 10, 20, 40, 60, 60, ..."""
    delay = FIRST
    while True:
        yield delay
        delay = min(2 * delay, LAST)


def keep(
    attempt: Callable[[], int],
    *,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
    tell: Callable[[str], None] = print,
) -> NoReturn:
    """Carry out `attempt` again and again, until it or `pause` raises.

    Args:
        attempt: runs a process to its end; returns its status.
        pause: waits for seconds.
        now: seconds on a clock.
        tell: what happened.
    """
    waits = delays()
    while True:
        began = now()
        status = attempt()
        seconds = now() - began
        if seconds >= STEADY:
            waits = delays()
        wait = next(waits)
        tell(f"ended with {status} after {seconds:.0f} s; starts again in {wait:.0f} s")
        pause(wait)


def attend(process: "subprocess.Popen[bytes]", grace: float = GRACE) -> int:
    """Wait for a process that leads a group; where this one is interrupted, end it; its status.

    Args:
        process: as of `end`.
        grace: as of `end`.
    """
    try:
        return process.wait()
    finally:
        end(process, grace)


def end_keeper(process: "subprocess.Popen[bytes]", grace: float = GRACE) -> None:
    """End a process that attends another one, whose group is not its own.

    Args:
        process: as of `end`.
        grace: that it gives the other one.
    """
    end(process, 2 * grace)  # ended sooner, it could not end the other one


def end(process: "subprocess.Popen[bytes]", grace: float = GRACE) -> None:
    """End a process that leads a group, and its group.

    Args:
        process: asked to end first.
        grace: seconds that it may take.
    """
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
            break
