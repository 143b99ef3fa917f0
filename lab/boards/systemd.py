"""Part ``systemd``: a server and a device, as docs/edge.md says.

They have a real service manager. A user with sudo types every command as the page has it. Then the
power is cut in the middle of a run, first of the device, then of the server, and the run must go on
without further commands.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fl_app.core.errors import RunError
from fl_app.core.events import Arrived, Event
from fl_app.record.log import read_events
from lab.boards.podman import SUITE, USER, Machine, Podman, make_base
from lab.boards.steps import PROJECT, Steps, ask, change, run_summary
from lab.demo import wait_for

PAGE = PROJECT / "docs" / "edge.md"
MAKER, SERVER, DEVICE = "maker", "server", "device-0"  # machines
ADDRESS = "server.lan"  # of the server, as on the page
TYPING = 1800.0  # seconds that a command may take: one installs everything
LONG = "num_versions=40"  # added to the kit's OVERRIDES, whose run would take longer
RUN = "/opt/fl-app/server/run"
END = 900.0  # seconds from the start of the run to its end, with two power failures
# The packages of Raspberry Pi OS Lite that the pages use, and a user like its own: sudo needs no
# password, and the user may read the journal.
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "sudo", "python3", "ca-certificates"),
    *("procps", "iproute2", "curl"),
)
HOOKS = (
    f'chroot "$1" useradd --create-home --shell /bin/bash --groups sudo,adm {USER}',
    f'echo "{USER} ALL=(ALL) NOPASSWD: ALL" >"$1/etc/sudoers.d/010_{USER}"',
)
MEANINGS = {"server": ADDRESS, "device": DEVICE, "user": USER}
# Commands to type: heading, number of the block below it, machine.
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


@contextmanager
def steps(work: Path) -> Iterator[Steps]:
    """The steps, while Podman runs.

    Args:
        work: empty folder for the files of this run.
    """
    with Podman() as podman:
        board = Boards(podman, work)
        yield {
            "a board's system made of Debian's packages": board.boot,
            **{f"{PAGE.name}: {step}": partial(board.follow, STEPS[step]) for step in STEPS},
            "the run goes on": board.begin,
            "the device loses its power, and trains again": partial(board.cut, DEVICE),
            "the server loses its power, and the run goes on": partial(board.cut, SERVER),
            "the run ends": board.end,
        }


class Boards:
    """A server and a device, which find each other by name.

    Args:
        podman: that runs them.
        work: folder for the kit and the event logs.
    """

    def __init__(self, podman: Podman, work: Path) -> None:
        self._podman = podman
        self._work = work
        self._machines: dict[str, Machine] = {}

    def boot(self) -> str:
        """Make the system and boot both machines."""
        image = make_base(self._podman, "board", PACKAGES, *HOOKS)
        for name, alias in ((SERVER, ADDRESS), (DEVICE, DEVICE)):
            options = [f"--network={self._podman.network}", f"--network-alias={alias}"]
            self._machines[name] = Machine(self._podman, name, image, options)
        size = self._podman.megabytes(image)
        return f"Debian's {SUITE}, {size:,.0f} MB; two machines are up"

    def follow(self, stops: Sequence[Stop]) -> str:
        """Type the commands of some blocks, each after a new login."""
        output = ""
        for section, number, machine in stops:
            commands = re.sub(
                r"<(\w+)>", lambda name: MEANINGS[name[1]], block(PAGE, section, number)
            )
            try:
                if machine != MAKER:
                    output = self._machines[machine].type(commands, TYPING)
                elif commands.startswith("scp "):
                    output = self._copy(commands)
                else:
                    output = self._make(commands)
            except RunError as error:
                raise RunError(f"{section}, on {machine}: {error}") from None
        return output.splitlines()[-1] if output else "nothing is printed"

    def begin(self) -> str:
        """Wait for the first updates."""
        seconds = wait_for(lambda: len(self._arrivals()) > 2, "three updates arrived", 400.0)
        return f"three updates after {seconds:.0f} s"

    def cut(self, name: str) -> str:
        """Cut a machine's power for a moment."""
        self._machines[name].cut()
        count = len(self._arrivals())
        if self._has_ended():
            raise RunError("the run had ended before the power failed: it is too short")
        seconds = wait_for(lambda: len(self._arrivals()) > count, "an update arrived", 400.0)
        return f"an update arrived {seconds:.0f} s after the boot"

    def end(self) -> str:
        """Wait for the end of the run."""
        wait_for(self._has_ended, "the run ends", END, interval=5.0)
        return run_summary(self._machines[SERVER].fetch(RUN, self._work))

    def _make(self, commands: str) -> str:
        """Type commands on the machine that makes the kit: this one."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(PROJECT)}
        words = ["bash", "-e", "-c", commands]
        output = ask(words, environment=environment, cwd=self._work, seconds=TYPING)
        change(self._work / "out/server/server.env", 'OVERRIDES="', f'OVERRIDES="{LONG} ')
        return output

    def _copy(self, commands: str) -> str:
        """Copy folders to machines' users as ``scp -r`` does, without a network."""
        for line in commands.splitlines():
            _, _, source, target = line.split()
            host = target.removeprefix(f"{USER}@").removesuffix(":")
            self._machines[SERVER if host == ADDRESS else host].receive(self._work / source)
        return commands

    def _arrivals(self) -> list[Event]:
        log = self._work / "events.jsonl"
        log.write_text(self._file("events.jsonl"))
        return [event for event in read_events(log) if isinstance(event, Arrived)]

    def _has_ended(self) -> bool:
        return self._file("summary.json") != ""

    def _file(self, name: str) -> str:
        """A file of the run; "" if there is none yet."""
        with suppress(RunError):
            return self._machines[SERVER].root("cat", f"{RUN}/{name}")
        return ""


def block(page: Path, section: str, number: int) -> str:
    """A block with commands, by its section's heading and its number in the section, from 0.

    Raises:
        RunError: the page has no such block.
    """
    _, _, text = page.read_text().partition(f"# {section}\n")
    blocks = re.findall(r"^```sh\n(.*?)^```", text.partition("\n#")[0], re.MULTILINE | re.DOTALL)
    if number >= len(blocks):
        raise RunError(f"{page.name} has {len(blocks)} blocks of commands below {section!r}")
    return str(blocks[number])
