"""A machine with a service manager, in a container: somebody types a page's commands on it."""

import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lab.boards import bases
from lab.boards.podman import Container, Podman
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
        user: str = bases.USER,
    ) -> None:
        self.name = name
        self.home = "/root" if user == "root" else f"/home/{user}"
        self._user = user
        self._cwd = self.home
        words = ["--systemd", "always", "--timeout", str(LIFE), "--hostname", name]
        words += [*RIGHTS, *options]
        self.on = True
        try:  # nothing of this project is in it yet
            self.container: Container = podman.start(name, image, "/sbin/init", options=words)
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
        told = self.container.ask(
            *("bash", "-c", f"{trap}\n{command}\n"),
            options=["--user", self._user, "--workdir", self._cwd, f"--env=HOME={self.home}"],
            seconds=seconds,
        )
        said, _, cwd = told.rstrip().rpartition(HERE)
        self._cwd = cwd.strip()
        return said.strip()

    def leave(self) -> None:
        """Log in anew: the next command begins in the user's home."""
        self._cwd = self.home

    def receive(self, folder: Path) -> None:
        """Copy a folder into the user's home, as ``scp -r`` does."""
        self.container.put(folder, f"{self.home}/")
        self.root("chown", "-R", f"{bases.USER}:", self.home)

    def root(self, *command: object, seconds: float = 60.0) -> str:
        """Run a command as the harness, not as somebody who follows a page."""
        return self.container.ask(*command, seconds=seconds)

    def active(self, unit: str) -> bool:
        """Whether a service runs."""
        return self._state("is-active", unit) == "active"

    def switch_off(self) -> None:
        """Cut the power."""
        self.container.kill()
        self.on = False

    def switch_on(self) -> None:
        """Boot it again, with the files that it had."""
        self.container.start()
        self.on = True
        self._cwd = self.home
        self.wait()

    def fetch(self, folder: str, into: Path) -> Path:
        """Copy a folder of its files to this machine; return where it lies."""
        copy = into / Path(folder).name
        shutil.rmtree(copy, ignore_errors=True)
        self.container.get(folder, into)
        return copy

    def _booted(self) -> bool:
        return self._state("is-system-running") in ("running", "degraded")

    def _state(self, *question: str) -> str:
        """The answer of systemctl, whose status is not 0 for a state that is not the best."""
        try:
            return self.root("sh", "-c", f"systemctl {shlex.join(question)} || true").strip()
        except Disappointed:  # it does not take commands yet
            return ""


class Walk:
    """The commands of a page, typed as they are written: one on every line of a block of ``sh``.

    Args:
        page: Markdown file.
        typists: types a command on a machine and returns what it printed, by the machine's name.
        meanings: of the page's placeholders, such as ``<server>``.
        transcript: file to which commands, seconds and outputs are appended.
    """

    def __init__(
        self,
        page: Path,
        typists: Mapping[str, Callable[[str], str]],
        meanings: Mapping[str, str],
        transcript: Path,
    ) -> None:
        self._page = page
        self._typists = typists
        self._meanings = meanings
        self._transcript = transcript

    def follow(self, section: str, number: int, machine: str) -> str:
        """Type the commands of a block; return what the last one printed.

        Args:
            section: heading right above the block.
            number: of the block among those with commands in this section, from 0.
            machine: on which they are typed.

        Raises:
            Disappointed: there is no such block, or a command failed.
            KeyError: a placeholder has no meaning.
        """
        said = ""
        for line in block(self._page, section, number).splitlines():
            command = re.sub(r"<(\w+)>", lambda name: self._meanings[name[1]], line)
            began = time.monotonic()
            try:
                said = self._typists[machine](command)
            except Disappointed as error:
                self._note(f"on {machine}: {command}\n{error}")
                raise Disappointed(f"{section}, on {machine}: `{command}`: {error}") from None
            self._note(f"on {machine}, {time.monotonic() - began:.1f} s: {command}\n{said}")
        return said

    def _note(self, text: str) -> None:
        with self._transcript.open("a") as file:
            file.write(f"{text}\n\n")


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
