"""Whether a device has the memory for the fast way between two orders, and how much is free.

The fast way consists of a SuperNode that looks for orders often, an executor that forks instead of
starting Python (`fl_app.node.warm`), and a training process that stays (`fl_app.node.resident`).
Only the last needs memory of its own; the executor takes less than Flower's. ``WARM`` in the
environment switches all three.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import psutil

from fl_app.core.errors import require

VARIABLE = "WARM"
AUTO, ON, OFF = "auto", "1", "0"
MIB = 2**20
# MiB, measured with LeNet on x86-64 by measurements: of their own, and half
# of the libraries' files, which the kernel counts as free. Without the other half a process is
# slow and works.
NODE = 160  # SuperNode, executor, fork server, and a ClientApp that passes an order on
TRAINING = {"cuda": 470, "cpu": 230}  # a training process, by the build of torch
# MiB that stay free for the rest of the device: below, the training process that stays ends. [A]
SPARE = 64


@dataclass(frozen=True, slots=True)
class Way:
    """What a node does between two orders.

    Args:
        fast: whether the SuperNode looks for orders often and its executor forks ClientApps.
        stays: whether a training process stays.
        why: one sentence for the log.
    """

    fast: bool
    stays: bool
    why: str


def setting(environment: Mapping[str, str] = os.environ) -> str:
    """The value of WARM; "auto" if there is none.

    Raises:
        ValueError: it is neither auto, 1 nor 0.
    """
    value = environment.get(VARIABLE) or AUTO
    require(
        value in (AUTO, ON, OFF),
        VARIABLE,
        value,
        "auto, 1 or 0",
        "it decides whether processes stay between two orders",
    )
    return value


def choose(value: str, free: int) -> Way:
    """The way that a node takes.

    Args:
        value: of WARM.
        free: bytes of memory that the node's processes can have, all together, with what this
            process has already.
    """
    if value == OFF:
        return Way(False, False, "WARM=0: the node waits as Flower does, and nothing stays")
    if value == ON:
        return Way(True, True, "WARM=1: the fast way is on, whatever memory is free")
    told = f"WARM=auto: {free // MIB} MiB of memory are free"
    enough = needed() + NODE * MIB
    if free >= enough:
        return Way(True, True, f"{told}: the fast way is on")
    # Executor and ClientApps go on forking: they take less memory than Flower's own.
    return Way(True, False, f"{told}, and a training process that stays needs {enough // MIB}")


def torch_build() -> str:
    """What the installed torch was built for, ``"cuda"`` or ``"cpu"``; it is not imported."""
    found = find_spec("torch")
    folders = map(Path, (found and found.submodule_search_locations) or ())
    return "cuda" if any((each / "lib/libtorch_cuda.so").exists() for each in folders) else "cpu"


def least() -> int:
    """Bytes that a node's processes must have, or orders fail."""
    return (TRAINING[torch_build()] + NODE) * MIB


def needed() -> int:
    """Bytes that must be free before a training process is started that stays."""
    return (TRAINING[torch_build()] + SPARE) * MIB


def free(root: Path = Path("/")) -> int:
    """Bytes that new processes can have, of the machine or of the tightest limit on this process.

    As in the kernel's MemAvailable, what files occupy in memory is free, and swap does not count.

    Args:
        root: where ``proc`` and ``sys`` lie.
    """
    return min([int(psutil.virtual_memory().available), *_within_limits(root)])


def held(pid: int | str = "self") -> int:
    """Bytes that a process wrote to; what n processes share counts 1/n.

    0 if it has ended, belongs to somebody else, or the kernel does not count them (before 5.4).
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0
    return 1024 * int(dict(line.split(":") for line in lines).get("Pss_Anon", "0 kB").split()[0])


def _within_limits(root: Path) -> Iterator[int]:
    """What is free below each limit of the control groups that this process is in."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    system = root / "sys/fs/cgroup"
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:  # version 2
            for base in (system, system / "unified"):
                yield from _below(base, path, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
            yield from _below(system / "memory", path, *names)


def _below(base: Path, path: str, limit: str, usage: str, prefix: str) -> Iterator[int]:
    """What is free below the limits of a group and of the groups that it is in.

    A container may see its own group at `base`, under whatever name the group has outside.
    """
    group = PurePosixPath(path)
    counted = f"{prefix}active_file", f"{prefix}inactive_file"
    for part in (group, *group.parents):
        folder = base / part.relative_to("/")
        try:
            most, used = (int((folder / name).read_text()) for name in (limit, usage))
            told = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            files = [int(size) for name, size in told if name in counted]
        except (OSError, ValueError):  # no such group, or its limit is "max"
            continue
        yield most - used + sum(files)
