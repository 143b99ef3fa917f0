"""Ends processes, with all that they started, and finds ports for them."""

import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress

HOST = "127.0.0.1"
GRACE = 15.0  # seconds from SIGTERM to SIGKILL


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
