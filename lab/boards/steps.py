"""Shared by the parts: commands on this machine, steps, and their rows."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from fl_app import Result
from fl_app.core.errors import RunError
from lab.demo import running

PROJECT = Path(__file__).resolve().parents[2]
ANSWER = 120.0  # seconds that a command may take by default
LAST = 4000  # characters of a failed command's output that are shown
Steps = Mapping[str, Callable[[], str]]
"""Names of steps, and the functions that carry them out and return what they observed."""

Row = tuple[str, str, float, str]
"""Step; "passed", "failed" or "impossible"; seconds; what was observed or is missing."""

# Messages of install.sh, `packages.py` and uv on a machine that reaches no packages.
NO_NETWORK = (
    "No matching distribution found for uv",
    "error sending request",
    "to a network, and run",
)


class Impossible(Exception):
    """This machine lacks something; the message says what, and how to get it."""


def attempt(part: AbstractContextManager[Steps]) -> Iterator[Row]:
    """Carry out a part's steps one after the other; yield a row for each.

    After a step that failed or is impossible, the later ones are not carried out, since they need
    it. One row names them.
    """
    try:
        with part as steps:
            remaining = [*steps]
            while remaining:
                name, began = remaining.pop(0), time.monotonic()
                verdict, detail = verdict_on(steps[name])
                yield name, verdict, time.monotonic() - began, detail
                if verdict != "passed" and remaining:
                    yield "; ".join(remaining), verdict, 0.0, f"not tried, for want of: {name}"
                    return
    except Impossible as error:
        yield "all of it", "impossible", 0.0, str(error)


def verdict_on(action: Callable[[], str]) -> tuple[str, str]:
    """The verdict on a step, and what was observed."""
    try:
        return "passed", action()
    except Impossible as error:
        return "impossible", str(error)
    except (RunError, OSError, ValueError) as error:
        text = str(error)
        return "impossible" if any(sign in text for sign in NO_NETWORK) else "failed", text


def ask(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float = ANSWER,
    cwd: Path | None = None,
    name: str | None = None,
) -> str:
    """Run a command; return its output. No process of it is left, also after Ctrl-C.

    Args:
        command: and its arguments.
        environment: of the command; None = this process's.
        seconds: that it may take.
        cwd: folder in which it runs.
        name: of the command in errors; None = all of its words.

    Raises:
        RunError: it failed, or did not end in time.
    """
    name = name or " ".join(command)
    began = time.monotonic()
    settings = {"env": environment, "cwd": cwd, "stdout": subprocess.PIPE}
    with running(command, **settings) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise RunError(f"not done within {seconds:g} s: {name}") from None
    text = output.decode(errors="replace")
    if process.returncode != 0:
        passed = time.monotonic() - began
        raise RunError(
            f"{name} ended with {process.returncode} after {passed:.0f} s: {text.strip()[-LAST:]}"
        )
    return text


def require_programs(names: Iterable[str], remedy: str) -> None:
    """Check that this machine has programs.

    Args:
        names: of the programs.
        remedy: how to install them.

    Raises:
        Impossible: some are missing.
    """
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise Impossible(f"{', '.join(missing)} is missing: {remedy}")


def change(settings: Path, old: str, new: str) -> None:
    """Replace a text in a kit's settings, as a person would edit it."""
    text = settings.read_text()
    if old not in text:
        raise RunError(f"{settings} must hold {old}")
    settings.write_text(text.replace(old, new))


def run_summary(run: Path) -> str:
    """A summary of a run.

    Raises:
        RunError: it did not end as it should.
    """
    summary = Result(run).summary
    if summary["stopped"] not in ("num_versions", "seconds"):
        raise RunError(f"{run} stopped with {summary['stopped']}")
    if not summary["client_updates"]:
        raise RunError(f"no update arrived in {run}")
    text = "{num_versions} versions from {client_updates} updates in {virtual_seconds:.0f} s"
    return (text + ", {failures} failures").format(**summary)
