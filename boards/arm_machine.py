"""Part ``arm-machine``: an emulated 64-bit ARM board with systemd, as docs/edge.md says.

Its server is a machine of this one's processor. The same commands are typed as in the part
``systemd``, on the board by root: under QEMU, sudo makes no other user root.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from boards import bases
from boards.arm_root import require_emulation
from boards.podman import Podman
from boards.row import Row, attempt
from boards.systemd import PAGE, STEPS, Boards

PART = "arm-machine"


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
