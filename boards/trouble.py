"""Part ``trouble``: what goes wrong while a device is installed and begins."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from boards import bases
from boards.kits import HOME, PYTHON, make_kit, online
from boards.machine import Machine
from boards.podman import Podman
from boards.row import Disappointed, Row, attempt, wait_for

PART = "trouble"
HOST = "server.lan"
UNIT = "fl-supernode"
INSTALL = "sudo sh install.sh --torch cpu"
SECONDS = 900.0  # that an installation may take
MOMENTS = (3.0, 8.0, 15.0)  # seconds after the start of install.sh at which the power fails
ALONE = 45.0  # seconds for which a device that has booted finds no network
JOIN = 300.0  # seconds in which it must join as soon as there is one


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why install.sh refuses a system.

    Attributes:
        name: of what does not fit.
        spoil: command of root that makes it so.
        mend: command of root that undoes it.
        said: part of what install.sh must say.
    """

    name: str
    spoil: str
    mend: str
    said: str


SETTINGS = f"/home/{bases.USER}/node-0/node.env"
UNFITS = (
    Unfit(
        "too little memory",
        "sed 's/^MemTotal:.*/MemTotal: 307200 kB/' /proc/meminfo >/run/meminfo"
        " && mount --bind /run/meminfo /proc/meminfo",
        "umount /proc/meminfo",
        "this machine has 300 MiB of memory",
    ),
    Unfit(
        "too little disk",
        "mount -t tmpfs -o size=400m tmpfs /opt",
        "umount /opt",
        "/opt has 400 MiB of free disk space",
    ),
    # This machine's clock stays as it is: the kit is made by one that is a century ahead.
    Unfit(
        "a clock behind that of the kit's maker",
        f"sed -i.good 's/^MADE=.*/MADE=\"4918492800\"/' {SETTINGS}",
        f"mv {SETTINGS}.good {SETTINGS}",
        "which is before this kit was made",
    ),
    Unfit(
        "a taken port",
        "systemd-run --unit=taken python3 -m http.server 9094"
        " && until ss -ltn | grep -q :9094; do sleep 0.2; done",
        "systemctl stop taken",
        "another program listens on port 9094",
    ),
)


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
                *(
                    (f"install.sh with {unfit.name}", partial(trouble.unfit, unfit))
                    for unfit in UNFITS
                ),
                ("install.sh without a network", trouble.unconnected),
                ("the power fails while install.sh runs", trouble.interrupted),
                ("a device boots without a network, before its server is there", trouble.early),
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
        self._image = bases.make(self._podman, bases.BOARD)
        self._device = self._boot("device", "node-0", self._image)
        return f"Debian's {bases.SUITE}, {self._podman.megabytes(self._image):,.0f} MB"

    def _boot(self, name: str, folder: str, image: str, *options: str) -> Machine:
        if not self._kit.exists():
            make_kit(self._kit, HOST, nodes=1)
        machine = Machine(self._podman, name, image, [self._podman.network(), *options])
        machine.receive(self._kit / folder)
        return machine

    def unfit(self, unfit: Unfit) -> str:
        """Install the device where something does not fit."""
        self._device.root("sh", "-c", unfit.spoil)
        try:
            said = refusal(self._device)
        finally:
            self._device.root("sh", "-c", unfit.mend)
        left = self._device.root(
            "sh", "-c", f"ls -d {HOME} 2>/dev/null; getent passwd fl-app || true"
        )
        if unfit.said not in said or "nothing was changed" not in said or left:
            raise Disappointed(f"install.sh said: {said}; it left: {left or 'nothing'}")
        return said

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
            if self._device.active(UNIT):
                raise Disappointed(f"install.sh is done within {seconds:g} s: too late to fail")
        # Doctor finds no server, which is status 3.
        said = self._device.type(f"{command} || [ $? = 3 ]", SECONDS)
        if not self._device.active(UNIT):
            raise Disappointed(f"{UNIT} does not run: {said}")
        moments = ", ".join(f"{seconds:g}" for seconds in MOMENTS)
        return f"after {moments} s; the next completes it, and {UNIT} is active"

    def early(self) -> str:
        """Boot the device without a network; install the server; then connect the device."""
        self._device.switch_off()
        self._device.switch_on(plugged=False)
        server = self._boot("server", "server", self._image, f"--network-alias={HOST}")
        began = time.monotonic()
        server.type(f"cd server && {INSTALL}", SECONDS)
        time.sleep(max(0.0, ALONE - (time.monotonic() - began)))
        if not self._device.active(UNIT):
            raise Disappointed(f"{UNIT} has given up: {self._device.journal(UNIT)}")

        def devices() -> int:
            return online(server.container, f"{HOME}/server", PYTHON)

        if devices():
            raise Disappointed("the device is online without a network")
        self._device.plug()
        seconds = wait_for(lambda: devices() == 1, "the device is online", JOIN)
        return f"{UNIT} waits, and is online {seconds:.0f} s after the network is there"

    def narrow(self) -> str:
        """Install the device where programs have 32 bits."""
        image = bases.make(self._podman, bases.NARROW)
        said = refusal(self._boot("narrow", "node-0", image))
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
