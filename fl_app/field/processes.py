"""Ends processes, with all that they started."""

import os
import signal
import subprocess
import time
from contextlib import suppress

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
