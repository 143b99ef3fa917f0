"""Commands of this machine: carried out to their end, with nothing of them left behind."""

import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fl_app.field.supervise import end
from lab.boards.row import Disappointed, Impossible

ANSWER = 120.0  # seconds that a command may take, unless it is told otherwise
LAST = 4000  # characters of a failed command's output that are shown


def ask(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float = ANSWER,
    cwd: Path | None = None,
    name: str | None = None,
) -> str:
    """Run a command; return what it printed. Nothing of it is left, also after Ctrl-C.

    Args:
        command: and its arguments.
        environment: of the command; None = this process's.
        seconds: that it may take.
        cwd: folder in which it runs.
        name: of the command in errors; None = all of its words.

    Raises:
        Disappointed: it failed, or did not end in time.
    """
    name = name or " ".join(command)
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Disappointed(f"not done within {seconds:g} s: {name}") from None
    finally:
        if process.poll() is None:
            end(process, grace=10.0)
    text = told.decode(errors="replace")
    if process.returncode != 0:
        passed = time.monotonic() - began
        raise Disappointed(
            f"{name} ended with {process.returncode} after {passed:.0f} s: {text.strip()[-LAST:]}"
        )
    return text


def require_programs(names: Iterable[str], how: str) -> None:
    """Check that this machine has programs.

    Args:
        names: of the programs.
        how: they are installed.

    Raises:
        Impossible: some are missing.
    """
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise Impossible(f"{', '.join(missing)} is missing: {how}")
