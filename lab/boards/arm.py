"""Part ``arm``: an emulated 64-bit ARM board with systemd, as docs/edge.md says.

Its server is a machine of this one's processor. The same commands are typed as in the part
``systemd``, on the board by root: under QEMU, sudo makes no other user root.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lab.boards import bases
from lab.boards.podman import Podman
from lab.boards.steps import Impossible, Row, attempt
from lab.boards.systemd import PAGE, STEPS, Boards

PART = "arm"
# 7.2 of Debian 12 crashes when torch is imported, 10.0 of its backports does not.
QEMU, LEAST_QEMU = "qemu-aarch64-static", (10, 0)
REGISTER = "register it with `/usr/lib/systemd/systemd-binfmt`"
PROGRAMS = {"mmdebstrap": "mmdebstrap", "arch-test": "arch-test", QEMU: "qemu-user-static"}


def run(work: Path) -> Iterator[Row]:
    """Yield a row for everything that is tried.

    Args:
        work: empty folder for the files of this run.
    """
    require_emulation()
    with Podman() as podman:
        options = [f"--env={word}" for word in bases.EMULATED]
        boards = Boards(podman, work, bases.ARM, options, "root")
        yield from attempt(
            PART,
            [
                ("systems of a server and of an ARM board", boards.boot),
                *((f"{PAGE.name}: {step}", partial(boards.follow, STEPS[step])) for step in STEPS),
                ("the ARM board trains", boards.begin),
                ("it loses its power, and trains again", boards.cut_device),
            ],
        )


def require_emulation() -> None:
    """Return if this machine can run programs for ARM in a root of their own.

    Raises:
        Impossible: it lacks something.
    """
    if os.geteuid() != 0:
        raise Impossible("chroot and mmdebstrap need root's rights here: run it as root")
    if lacking := [package for name, package in PROGRAMS.items() if not shutil.which(name)]:
        raise Impossible(f"apt install {' '.join(lacking)}")
    if (
        found := qemu_version(subprocess.check_output([QEMU, "--version"], text=True))
    ) < LEAST_QEMU:
        raise Impossible(
            f"QEMU {'.'.join(map(str, found))} must be {'.'.join(map(str, LEAST_QEMU))} or newer, "
            "because it crashes when torch is imported: install qemu-user-static of Debian 12's "
            f"backports and {REGISTER}, as the kernel keeps the interpreter that it knows"
        )
    if subprocess.run(["arch-test", "arm64"], capture_output=True).returncode:
        raise Impossible(
            f"the kernel does not start programs for arm64: {REGISTER}; before, where it is not "
            "mounted, `mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc`"
        )


def qemu_version(text: str) -> tuple[int, ...]:
    """Return QEMU's version from what its option --version prints; () if it is not in there."""
    found = re.search(r"version (\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()
