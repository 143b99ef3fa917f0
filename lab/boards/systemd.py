"""Parts ``systemd`` and ``arm``: a server and a device, as docs/edge.md says.

They have a real service manager. Every command is typed as the page has it, by a user with sudo.
Then the power is cut in the middle of a run, first of the device, then of the server, and nobody
types anything any more. In the part ``arm`` the device is an emulated 64-bit ARM board, on which
root types: under QEMU, sudo makes no other user root.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from fl_app.core.events import Arrived, Event
from fl_app.field.__main__ import INTERRUPTED
from fl_app.record.log import read_events
from lab.boards.podman import ARM, BOARD, EMULATED, SUITE, USER, Base, Machine, Podman, make_base
from lab.boards.steps import (
    PROJECT,
    Disappointed,
    Impossible,
    Row,
    ask,
    attempt,
    told,
    wait_for,
)

PAGE = PROJECT / "docs" / "edge.md"
MAKER, SERVER, DEVICE, HAND = "maker", "server", "device-0", "by-hand"  # machines
MACHINES = (SERVER, DEVICE)  # that are booted first
ADDRESS = "server.lan"  # of the server, as on the page
TYPING = 1800.0  # seconds that a command may take: one installs everything
LONG = "num_versions=40"  # added to the kit's OVERRIDES, whose run would take longer
RUN = "/opt/fl-app/server/run"
OTHER_RUN = "/opt/fl-app/server/run-2"  # of the run with other words
END = 900.0  # seconds from the start of the run to its end, with two power failures
MEANINGS = {"server": ADDRESS, "device": DEVICE, "user": USER}
# A command that would go on for long, and that a person ends with Ctrl-C.
SUPERVISOR = ".venv/bin/python -m fl_app.field run"
UNTIL = 90  # seconds after which it is pressed
CTRL_C = (
    *("systemd-run", f"--on-active={UNTIL}", "--timer-property=AccuracySec=1s"),
    *("pkill", "-INT", "-f", f"^{SUPERVISOR}"),
)
# What is typed where: heading, number of the block below it, machine.
Stop = tuple[str, int, str]
STEPS: dict[str, Sequence[Stop]] = {
    "make the kit and copy its folders": [
        ("1. Make the kit", 0, MAKER),
        ("2. Install", 0, MAKER),
    ],
    "install the server": [("2. Install", 1, SERVER)],
    "install a device": [("2. Install", 2, DEVICE)],
    "run": [("3. Run", 0, SERVER)],
}
BY_HAND: Sequence[Stop] = [("2. Install", 0, MAKER), ("Step by step", 0, HAND)]
OTHER_WORDS: Sequence[Stop] = [("3. Run", 1, SERVER)]
UNIT = "fl-supernode"


def run(work: Path) -> Iterator[Row]:
    """Yield a row for everything that is tried.

    Args:
        work: empty folder for the files of this run.
    """
    with Podman() as podman:
        board = Boards(podman, work)
        yield from attempt(
            "systemd",
            [
                ("a board's system made of Debian's packages", board.boot),
                *((f"{PAGE.name}: {step}", partial(board.follow, STEPS[step])) for step in STEPS),
                ("the run goes on", board.begin),
                ("the device loses its power, and trains again", board.cut_device),
                ("the server loses its power, and the run goes on", board.cut_server),
                ("the run ends", board.end),
                (f"{PAGE.name}: a device step by step", board.by_hand),
                (f"{PAGE.name}: run with other words", board.other_words),
            ],
        )


class Boards:
    """A server and a device, which know each other by name.

    Args:
        podman: that runs them.
        work: folder for the kit and the event logs.
        system: of the device.
        options: of ``podman run`` for the device.
        user: who types on the device.
    """

    def __init__(
        self,
        podman: Podman,
        work: Path,
        system: Base = BOARD,
        options: Sequence[str] = (),
        user: str = USER,
    ) -> None:
        self._podman = podman
        self._work = work
        self._systems = {SERVER: BOARD, DEVICE: system}
        self._options = {SERVER: (), DEVICE: options}
        self._users = {SERVER: USER, DEVICE: user}
        self._machines: dict[str, Machine] = {}

    def boot(self) -> str:
        """Make the systems and boot both machines."""
        self._images = {name: make_base(self._podman, self._systems[name]) for name in MACHINES}
        self._network = self._podman.network()
        for name in MACHINES:
            self._boot(name)
        sizes = [self._podman.megabytes(image) for image in self._images.values()]
        told = " and ".join(f"{size:,.0f}" for size in dict.fromkeys(sizes))
        return f"Debian's {SUITE}, {told} MB; two machines are up"

    def by_hand(self) -> str:
        """Install the device once more, on another machine, without install.sh."""
        self._machines[DEVICE].switch_off()
        self._boot(DEVICE, HAND)
        self.follow(BY_HAND)
        seconds = wait_for(lambda: self._machines[HAND].active(UNIT), "it runs", 120.0)
        return f"{UNIT} is active after {seconds:.0f} s"

    def other_words(self) -> str:
        """Begin a run with other words, press Ctrl-C after a while; the run goes on.

        It trains on the device that was installed step by step: no other is on.
        """
        self.follow(OTHER_WORDS)
        before = len(self._arrived(OTHER_RUN))
        seconds = wait_for(
            lambda: len(self._arrived(OTHER_RUN)) > before, "an update arrived", 400.0
        )
        return f"{before} updates before Ctrl-C; another one {seconds:.0f} s after it"

    def _boot(self, host: str, name: str | None = None) -> None:
        """Boot a machine that others know as `host`."""
        alias = ADDRESS if host == SERVER else host
        options = [self._network, f"--network-alias={alias}", *self._options[host]]
        self._machines[name or host] = Machine(
            self._podman, name or host, self._images[host], options, self._users[host]
        )

    def follow(self, stops: Sequence[Stop]) -> str:
        """Type the commands of some blocks, one on every line; each begins with a new login."""
        said = ""
        for section, number, machine in stops:
            if machine in self._machines:
                self._machines[machine].leave()
            for line in block(PAGE, section, number).splitlines():
                command = re.sub(r"<(\w+)>", lambda name: MEANINGS[name[1]], line)
                try:
                    said = self._type(machine, command)
                except Disappointed as error:
                    told = f"{section}, on {machine}: `{command}`: {error}"
                    raise Disappointed(told) from None
        return said.splitlines()[-1] if said else "nothing is printed"

    def begin(self) -> str:
        """Wait for the first updates."""
        seconds = wait_for(lambda: len(self._arrived()) > 2, "three updates arrived", 400.0)
        return f"three updates after {seconds:.0f} s"

    def cut_device(self) -> str:
        """Cut the device's power for a moment."""
        device = self._machines[DEVICE]
        device.switch_off()
        before = len(self._arrived())
        device.switch_on()
        seconds = wait_for(
            lambda: len(self._arrived()) > before, "an update of the device arrived", 400.0
        )
        return f"an update arrived {seconds:.0f} s after the boot"

    def cut_server(self) -> str:
        """Cut the server's power for a moment."""
        server = self._machines[SERVER]
        server.switch_off()
        server.switch_on()
        before = len(self._arrived())
        if self._ended():
            raise Disappointed("the run had ended before the power failed: it is too short")
        seconds = wait_for(
            lambda: len(self._arrived()) > before, "an update arrived at the server", 400.0
        )
        return f"an update arrived {seconds:.0f} s after the boot"

    def end(self) -> str:
        """Wait for the end of the run."""
        wait_for(self._ended, "the run ends", END, every=5.0)
        return told(self._machines[SERVER].fetch(RUN, self._work))

    def _make(self, command: str) -> str:
        """Type a command on the machine that makes the kit: this one."""
        if command.startswith("scp "):
            return self._copy(command)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(PROJECT)}
        said = ask(["bash", "-c", command], environment=environment, cwd=self._work, seconds=TYPING)
        settings = self._work / "out" / "server" / "server.env"
        settings.write_text(settings.read_text().replace('OVERRIDES="', f'OVERRIDES="{LONG} '))
        return said

    def _type(self, name: str, command: str) -> str:
        """Type a command on a machine; what would go on for long is interrupted."""
        if name == MAKER:
            return self._make(command)
        if SUPERVISOR in command:
            self._machines[name].root(*CTRL_C)
            command = f"{command} || [ $? = {INTERRUPTED} ]"
        return self._machines[name].type(command, TYPING)

    def _copy(self, command: str) -> str:
        """Copy a folder to a machine's user as ``scp -r`` does, without a network."""
        _, _, source, target = shlex.split(command)
        host = target.removeprefix(f"{USER}@").removesuffix(":")
        names = [SERVER] if host == ADDRESS else [host, HAND]
        for name in names:
            if name in self._machines and self._machines[name].on:
                self._machines[name].receive(self._work / source)
        return f"copied {source}"

    def _arrived(self, run: str = RUN) -> list[Event]:
        log = self._work / "events.jsonl"
        try:
            log.write_text(self._machines[SERVER].root("cat", f"{run}/events.jsonl"))
        except Disappointed:
            return []
        return [event for event in read_events(log) if isinstance(event, Arrived)]

    def _ended(self) -> bool:
        try:
            self._machines[SERVER].root("test", "-e", f"{RUN}/summary.json")
        except Disappointed:
            return False
        return True


# -- an emulated board -----------------------------------------------------------------------------

# 7.2 of Debian 12 crashes when torch is imported, 10.0 of its backports does not.
QEMU, LEAST_QEMU = "qemu-aarch64-static", (10, 0)
REGISTER = "register it with `/usr/lib/systemd/systemd-binfmt`"
PROGRAMS = {"mmdebstrap": "mmdebstrap", "arch-test": "arch-test", QEMU: "qemu-user-static"}


def run_arm(work: Path) -> Iterator[Row]:
    """Yield a row for everything that is tried.

    Args:
        work: empty folder for the files of this run.
    """
    require_emulation()
    with Podman() as podman:
        options = [f"--env={word}" for word in EMULATED]
        boards = Boards(podman, work, ARM, options, "root")
        yield from attempt(
            "arm",
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


def block(page: Path, section: str, number: int) -> str:
    """A block with commands, by its section's heading and its number in the section, from 0.

    Raises:
        Disappointed: the page has none there.
    """
    _, _, text = page.read_text().partition(f"# {section}\n")
    found = re.findall(r"^```sh\n(.*?)^```", text.partition("\n#")[0], re.MULTILINE | re.DOTALL)
    if number >= len(found):
        raise Disappointed(f"{page.name} has {len(found)} blocks of commands below {section!r}")
    return str(found[number])
