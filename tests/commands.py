"""Commands of this project as processes of their own."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def started(*words, module="fl_app", options=()):
    """``python OPTIONS -m MODULE WORDS`` in a process group that is killed in the end."""
    with subprocess.Popen(
        [sys.executable, *options, "-m", module, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def processes_of(home):
    """Command lines of the processes whose home for Flower lies in a folder, by their ids."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile, or somebody else's
            if f"FLWR_HOME={home}".encode() in (process / "environ").read_bytes():
                command = (process / "cmdline").read_text().replace("\0", " ")
                found[int(process.name)] = command
    return found
