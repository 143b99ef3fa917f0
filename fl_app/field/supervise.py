"""Keeps a process running: restarts it when it ends, after delays that double up to a minute.

The SuperLink refuses a restarted SuperNode (code 2004) while the old one still counts as online,
which is up to 60 s after its last heartbeat. One quick restart is therefore not enough. Restarts
without delay would only keep a core of the board busy.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

FIRST, LAST = 5.0, 60.0  # seconds: the shortest and the longest delay
STEADY = 120.0  # a process that ran for so many seconds resets the delay
LOOK = 0.2  # seconds between two looks at the processes
GRACE = 15.0  # seconds from SIGTERM to SIGKILL


def delays() -> Iterator[float]:
    """Yield the seconds before each further attempt: 5, 10, 20, 40, 60, 60, ..."""
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
    """Repeat `attempt` until it or `pause` raises.

    Args:
        attempt: runs a process to its end and returns its exit status.
        pause: waits for a number of seconds.
        now: returns the time in seconds.
        tell: reports restarts to the user.
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


def attend(*processes: "subprocess.Popen[bytes]", grace: float = GRACE) -> int:
    """Wait for the first process that ends, end the others, and return its exit status.

    All end if this process is interrupted.

    Args:
        processes: each leads its process group.
        grace: seconds from SIGTERM to SIGKILL.
    """
    try:
        while not (ended := [process for process in processes if process.poll() is not None]):
            time.sleep(LOOK)
        return int(ended[0].returncode)
    finally:
        for process in processes:
            end(process, grace)


def end(process: "subprocess.Popen[bytes]", grace: float = GRACE) -> None:
    """End a process and its process group, with SIGTERM and then SIGKILL.

    Args:
        process: leads its process group.
        grace: seconds from SIGTERM to SIGKILL.
    """
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
            break
