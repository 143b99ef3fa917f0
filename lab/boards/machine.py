"""A machine with a service manager, in a container: somebody types a page's commands on it."""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from lab.boards.podman import NAME, USER, Podman
from lab.boards.steps import Disappointed, Impossible, wait_for

BOOT = 90.0  # seconds that it may take until all services were started
LIFE = 3000  # seconds after which Podman ends it
# Without them, systemd in a container silently leaves out the protections of units.
RIGHTS = ("--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined")
HERE = "---- now in "  # begins the line that says in which folder a command ended


class Machine:
    """A container with systemd, and a user who types commands.

    Args:
        podman: that starts it.
        name: of the machine.
        image: a base with systemd and the user.
        options: further options of ``podman run``.
        user: who types.

    Raises:
        Impossible: it does not boot.
    """

    def __init__(
        self,
        podman: Podman,
        name: str,
        image: str,
        options: Sequence[str] = (),
        user: str = USER,
    ) -> None:
        self.name = name
        self._podman = podman
        self._container = f"{NAME}-{name}"
        self.home = "/root" if user == "root" else f"/home/{user}"
        self._user = user
        self._cwd = self.home
        words = ["--systemd", "always", "--timeout", str(LIFE), "--hostname", name]
        words += [*RIGHTS, *options]
        self.on = True
        try:  # nothing of this project is in it yet
            words = ["run", "--detach", "--name", self._container, "--pull", "never", *words]
            podman.ask(*words, image, "/sbin/init")
            self.wait()
        except Disappointed as error:
            raise Impossible(f"systemd cannot be started in a container here: {error}") from None

    def wait(self) -> float:
        """Wait until it has booted; return the seconds that it took."""
        return wait_for(self._booted, f"{self.name} has booted", BOOT)

    def type(self, command: str, seconds: float) -> str:
        """Run a command as the user, where the one before has left off; return what it printed.

        Raises:
            Disappointed: it failed, or did not end in time.
        """
        trap = f"trap 'echo; echo \"{HERE}$PWD\"' EXIT"
        options = ["--user", self._user, "--workdir", self._cwd, f"--env=HOME={self.home}"]
        script = ("bash", "-c", f"{trap}\n{command}\n")
        told = self._podman.ask("exec", *options, self._container, *script, seconds=seconds)
        said, _, cwd = told.rstrip().rpartition(HERE)
        self._cwd = cwd.strip()
        return said.strip()

    def leave(self) -> None:
        """Log in anew: the next command begins in the user's home."""
        self._cwd = self.home

    def receive(self, folder: Path) -> None:
        """Copy a folder into the user's home, as ``scp -r`` does."""
        self._podman.ask("cp", folder, f"{self._container}:{self.home}/")
        self.root("chown", "-R", f"{USER}:", self.home)

    def root(self, *command: object, seconds: float = 60.0) -> str:
        """Run a command as the harness, not as somebody who follows a page."""
        return self._podman.ask("exec", self._container, *command, seconds=seconds)

    def active(self, unit: str) -> bool:
        """Whether a service runs."""
        return self._state("is-active", unit) == "active"

    def switch_off(self) -> None:
        """Cut the power."""
        self._podman.ask("kill", "--signal", "KILL", self._container)
        self.on = False

    def switch_on(self) -> None:
        """Boot it again, with the files that it had."""
        self._podman.ask("start", self._container)
        self.on = True
        self._cwd = self.home
        self.wait()

    def fetch(self, folder: str, into: Path) -> Path:
        """Copy a folder of its files to this machine; return where it lies."""
        copy = into / Path(folder).name
        shutil.rmtree(copy, ignore_errors=True)
        self._podman.ask("cp", f"{self._container}:{folder}", into)
        return copy

    def _booted(self) -> bool:
        return self._state("is-system-running") in ("running", "degraded")

    def _state(self, *question: str) -> str:
        """The answer of systemctl, whose status is not 0 for a state that is not the best."""
        try:
            return self.root("sh", "-c", f"systemctl {shlex.join(question)} || true").strip()
        except Disappointed:  # it does not take commands yet
            return ""


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
