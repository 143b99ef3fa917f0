"""Starts, restarts and ends processes, with all that they started."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import NoReturn

HOST = "127.0.0.1"
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

    The SuperLink refuses a restarted SuperNode (code 2004) while the old one still counts as
    online, which is up to 60 s after its last heartbeat. One quick restart is therefore not enough.
    Restarts without delay would only keep a core of the board busy.

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
        end(*processes, grace=grace)


def end(*processes: "subprocess.Popen[bytes]", grace: float = GRACE) -> None:
    """End processes and their process groups, with SIGTERM and then SIGKILL.

    Args:
        processes: each leads its process group.
        grace: seconds from SIGTERM to SIGKILL.
    """
    for ending in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, ending)
        until = time.monotonic() + grace
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports of this machine."""
    with ExitStack() as stack:  # all are bound at the same time, so they differ
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
