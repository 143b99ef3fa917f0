"""Part ``trouble``: what goes wrong while a device is installed, without torch."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

from boards import bases
from boards.kits import make_kit
from boards.machine import Machine
from boards.podman import Podman
from boards.row import Disappointed, Row, attempt

PART = "trouble"
INSTALL = "sudo sh install.sh --torch none"
SECONDS = 900.0  # that an installation may take
MOMENTS = (3.0, 12.0, 25.0)  # seconds after the start of install.sh at which the power fails


def run(work: Path) -> Iterator[Row]:
    """Yield a row for everything that is tried.

    Args:
        work: empty folder for the files of this run.
    """
    with Podman() as podman:
        trouble = Trouble(podman, work)
        yield from attempt(
            PART,
            [
                ("a board's system made of Debian's packages", trouble.boot),
                ("install.sh without a network", trouble.unconnected),
                ("the power fails while install.sh runs", trouble.interrupted),
            ],
        )
        yield from attempt(PART, [("install.sh on a system of 32 bits", trouble.narrow)])


class Trouble:
    """A device whose server is not there yet.

    Args:
        podman: that runs it.
        work: folder for the kit.
    """

    def __init__(self, podman: Podman, work: Path) -> None:
        self._podman = podman
        self._kit = work / "out"

    def boot(self) -> str:
        """Make the system and boot it, with the device's folder of the kit."""
        image = bases.make(self._podman, bases.BOARD)
        self._device = self._boot("device", image)
        return f"Debian's {bases.SUITE}, {self._podman.megabytes(image):,.0f} MB"

    def _boot(self, name: str, image: str) -> Machine:
        if not self._kit.exists():
            make_kit(self._kit, "localhost", nodes=1)
        machine = Machine(self._podman, name, image, [self._podman.network()])
        machine.receive(self._kit / "node-0")
        return machine

    def unconnected(self) -> str:
        """Install the device without a network."""
        self._device.container.disconnect()
        try:
            said = refusal(self._device)
        finally:
            self._device.container.connect()
        if "connect this machine to a network" not in said:
            raise Disappointed(f"install.sh said: {said}")
        return said

    def interrupted(self) -> str:
        """Switch the device off in the middle of an installation, again and again; complete it."""
        command = f"cd {self._device.home}/node-0 && {INSTALL}"
        for seconds in MOMENTS:
            self._device.container.ask("sh", "-c", command, options=["--detach"])
            time.sleep(seconds)
            self._device.switch_off()
            self._device.switch_on()
            if self._device.active("fl-supernode"):
                raise Disappointed(f"install.sh is done within {seconds:g} s: too late to fail")
        # Doctor finds no server, which is status 3.
        said = self._device.type(f"{command} || [ $? = 3 ]", SECONDS)
        if not self._device.active("fl-supernode"):
            raise Disappointed(f"fl-supernode does not run: {said}")
        moments = ", ".join(f"{seconds:g}" for seconds in MOMENTS)
        return f"after {moments} s; the next completes it, and fl-supernode is active"

    def narrow(self) -> str:
        """Install the device where programs have 32 bits."""
        said = refusal(self._boot("narrow", bases.make(self._podman, bases.NARROW)))
        if "32-bit system" not in said or "nothing was changed" not in said:
            raise Disappointed(f"install.sh said: {said}")
        return said


def refusal(machine: Machine) -> str:
    """What the device's install.sh says is wrong.

    Raises:
        Disappointed: it ended with 0.
    """
    machine.leave()
    try:
        machine.type(f"cd node-0 && {INSTALL}", SECONDS)
    except Disappointed as error:
        machine.leave()
        return " | ".join(re.findall("error: .*", str(error)))
    raise Disappointed("install.sh ended with 0")
