"""Part ``trouble``: what goes wrong while a device is installed and when it first starts.

Server and device are machines of their own, both without torch.
"""

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from boards import bases
from boards.kits import make_kit
from boards.machine import Machine
from boards.podman import Podman
from boards.row import Disappointed, Row, attempt, wait_for
from boards.systemd import ADDRESS

PART = "trouble"
SERVER, DEVICE, NARROW = "server", "device-0", "narrow"
INSTALL = "sudo sh install.sh --torch none"
SECONDS = 900.0  # that an installation may take
MOMENTS = (3.0, 12.0, 25.0)  # seconds after the start of install.sh at which the power fails
OFFLINE = 40.0  # seconds without a network after the first start
JOIN = 180.0  # seconds after which a device must be online
NODES = """
import sys
from pathlib import Path
from fl_app.field.control import SuperLink
from fl_app.field.kit import Kit
print(SuperLink(Kit.read(Path("/opt/fl-app/server"))).online())
"""


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
                ("install.sh of the server", partial(trouble.install, SERVER)),
                ("no network when the device starts", trouble.late_network),
            ],
        )
        yield from attempt(PART, [("install.sh on a system of 32 bits", trouble.narrow)])


class Trouble:
    """A server and a device, which know each other by name.

    Args:
        podman: that runs them.
        work: folder for the kit.
    """

    def __init__(self, podman: Podman, work: Path) -> None:
        self._podman = podman
        self._kit = work / "out"
        self._machines: dict[str, Machine] = {}

    def boot(self) -> str:
        """Make the system and boot both machines, with their folders of the kit."""
        make_kit(self._kit, ADDRESS, nodes=1)
        image = bases.make(self._podman, bases.BOARD)
        for name, folder in ((SERVER, "server"), (DEVICE, "node-0")):
            self._boot(name, image, folder)
        return (
            f"Debian's {bases.SUITE}, {self._podman.megabytes(image):,.0f} MB; two of them are up"
        )

    def _boot(self, name: str, image: str, folder: str) -> None:
        alias = ADDRESS if name == SERVER else name
        options = [self._podman.network(), f"--network-alias={alias}"]
        self._machines[name] = Machine(self._podman, name, image, options)
        self._machines[name].receive(self._kit / folder)

    def unconnected(self) -> str:
        """Install the device without a network."""
        device = self._machines[DEVICE]
        device.container.disconnect()
        try:
            said = refusal(device)
        finally:
            device.container.connect()
        if "connect this machine to a network" not in said:
            raise Disappointed(f"install.sh said: {said}")
        return said

    def interrupted(self) -> str:
        """Switch the device off in the middle of an installation, again and again; complete it."""
        device = self._machines[DEVICE]
        for seconds in MOMENTS:
            device.container.ask(
                "sh", "-c", f"cd {device.home}/node-0 && {INSTALL}", options=["--detach"]
            )
            time.sleep(seconds)
            device.switch_off()
            device.switch_on()
            if device.active("fl-supernode"):
                raise Disappointed(f"install.sh is done within {seconds:g} s: too late to fail")
        said = self.install(DEVICE)
        moments = ", ".join(f"{seconds:g}" for seconds in MOMENTS)
        return f"after {moments} s; then: {said}"

    def install(self, name: str) -> str:
        """Run a machine's install.sh."""
        folder = "server" if name == SERVER else "node-0"
        machine = self._machines[name]
        machine.leave()
        status = "|| [ $? = 3 ]"  # doctor finds no server yet
        return machine.type(f"cd {folder} && {INSTALL} {status}", SECONDS).splitlines()[-1]

    def late_network(self) -> str:
        """Boot the device without a network; connect it later."""
        device = self._machines[DEVICE]
        device.switch_off()
        device.container.disconnect()
        wait_for(lambda: self._online() == 0, "the server misses the device", JOIN, every=5.0)
        device.switch_on()
        time.sleep(OFFLINE)
        if self._online():
            raise Disappointed("the device is online without a network")
        device.container.connect()
        seconds = wait_for(lambda: self._online() == 1, "the device is online", JOIN, every=2.0)
        return f"online {seconds:.0f} s after the network came, which was {OFFLINE:g} s late"

    def narrow(self) -> str:
        """Install the device where programs have 32 bits."""
        if not self._kit.exists():
            make_kit(self._kit, ADDRESS, nodes=1)
        self._boot(NARROW, bases.make(self._podman, bases.NARROW), "node-0")
        said = refusal(self._machines[NARROW])
        if "32-bit system" not in said or "nothing was changed" not in said:
            raise Disappointed(f"install.sh said: {said}")
        return said

    def _online(self) -> int:
        python = "/opt/fl-app/.venv/bin/python"
        return int(self._machines[SERVER].root(python, "-c", NODES).split()[-1])


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
