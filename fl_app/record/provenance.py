"""The origin of a run's numbers: software, date, overrides and host."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2]
GIT = ("git", "--no-optional-locks")
TIMEOUT = 5.0  # seconds for git


def provenance(overrides: Sequence[str], began: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The keys of ``summary.json`` on the origin of a run; equal runs may differ in them.

    Args:
        overrides: the user's.
        began: for a resumed run, the result of this function when the run began.

    Returns:
        ``version`` of this package; ``commit`` of its source tree, and ``uncommitted_changes``:
        whether ``fl_app`` or ``conf`` differ from the commit. Both are None without a git
        repository. ``date`` when the run began, UTC; ``overrides``; ``host``. A run that was
        resumed with other software, overrides or host also has ``began_with``, their first values.
    """
    commit, uncommitted_changes = source_commit(SOURCE)
    now: dict[str, Any] = {
        "version": installed_version("fl-app"),
        "commit": commit,
        "uncommitted_changes": uncommitted_changes,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "overrides": list(overrides),
        "host": {
            "os": platform.platform(),
            "processor": processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": installed_version("torch"),
            "flwr": installed_version("flwr"),
        },
    }
    if began is not None:
        now["date"] = began["date"]
        changed = {key: began[key] for key in now if began.get(key) != now[key]}
        if first_values := changed | began.get("began_with", {}):
            now["began_with"] = first_values
    return now


@cache
def source_commit(folder: Path) -> tuple[str | None, bool | None]:
    """Commit of a source tree, and whether its package differs from it; None without repository.

    The folder must be the root of the repository: if the package is installed inside another
    project, that project's repository says nothing about this code. A git failure counts as no
    repository.
    """
    if not (folder / ".git").exists():
        return None, None
    try:
        command = [*GIT, "status", "--porcelain=v2", "--branch", "--", "fl_app", "conf"]
        status = subprocess.check_output(
            command, cwd=folder, stderr=subprocess.DEVNULL, text=True, timeout=TIMEOUT
        ).splitlines()
    except (OSError, subprocess.SubprocessError):
        return None, None
    (commit,) = (line.split()[-1] for line in status if line.startswith("# branch.oid "))
    return commit, any(not line.startswith("#") for line in status)


def processor() -> str:
    """Model of this machine's processor, for which Python seldom has a name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def installed_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
