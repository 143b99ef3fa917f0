"""Commands of this project as processes of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def started(
    *words: str, module: str = "fl_app", options: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
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
