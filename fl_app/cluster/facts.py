"""What must be the same on all machines of a run, and what is compared to see that it is."""

import hashlib
import platform
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fl_app

ABSENT = "none"


@dataclass(frozen=True)
class Facts:
    """What a process says of itself before it imports torch.

    Attributes:
        versions: of Python, NumPy, torch and this project, by name. That of the project is the
            first digits of its code's SHA-256, since a clone changes without a new version.
        processor: on which results are computed. Others may round differently.
        machine: id of its machine in the cluster; "" = of a process that is no worker.
    """

    versions: dict[str, str]
    processor: str
    machine: str = ""


def facts() -> Facts:
    """Those of this process."""
    major, minor, _ = platform.python_version_tuple()
    versions = {
        "Python": f"{major}.{minor}",
        "NumPy": _version("numpy"),
        "torch": _version("torch").partition("+")[0],  # without the build, such as +cpu
        "fl_app's code": _digest_of_code()[:8],
    }
    return Facts(versions, _processor())


def difference(here: Facts, there: Facts) -> str:
    """What of `there` is of another version than `here`, with both; "" if nothing is."""
    return ", ".join(
        f"{name} {there.versions.get(name, ABSENT)} instead of {version}"
        for name, version in here.versions.items()
        if there.versions.get(name) != version
    )


def digest_of_data(task: Any) -> str:
    """SHA-256 of what clients of a task train and evaluate on, as hexadecimal digits.

    Args:
        task: with all of its clients. Of one that is not `fl_app.tasks.task.Task` only the examples
            of its clients are known, and the arrays that it calls ``inputs`` and ``targets``.
    """
    digest = hashlib.sha256(task.name.encode())
    for name in ("inputs", "targets"):
        value = getattr(task, name, None)
        if value is not None:
            _add(digest, name, value)
    for client_id in range(task.num_clients):
        _add(digest, "train", task.train_indices(client_id))
        _add(digest, "evaluation", task.evaluation_indices(client_id))
    return digest.hexdigest()


def _add(digest: Any, name: str, value: Any) -> None:
    array: NDArray[Any] = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ABSENT


@cache
def _digest_of_code() -> str:
    digest = hashlib.sha256()
    root = Path(fl_app.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """Model of the processor, as Linux names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
