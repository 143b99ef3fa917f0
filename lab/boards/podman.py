"""Podman, with its own storage and settings: it does not touch other images and containers.

It needs no limits above those of this process, and no service manager on this machine.
"""

import os
import resource
import shutil
import signal
from collections.abc import Sequence
from configparser import ConfigParser
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import tomli_w

from fl_app.core.errors import RunError
from lab.boards.steps import ANSWER, PROJECT, Impossible, ask, require_programs
from lab.demo import wait_for

CACHE = PROJECT / "outputs" / "boards"  # files that outlast a run
NAME = "fl-boards"  # prefix of the names of containers, images and networks
REMOVE = ("rm", "--all", "--force", "--time", "0", "--volumes")
REMOVAL = 45.0  # seconds that this may take
# Name, number and value. A container engine in a container may not set Podman's higher defaults.
LIMITS = (
    ("nofile", resource.RLIMIT_NOFILE, 8192),
    ("nproc", resource.RLIMIT_NPROC, 4096),
)
PACKAGES = "apt install podman buildah runc catatonit mmdebstrap fuse-overlayfs aardvark-dns"
INDEX = ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS")  # of PIP_ and UV_
CERTIFICATES = Path("/etc/ssl/certs")  # of this machine: it may trust further authorities
FILE = PROJECT / "docker" / "Dockerfile"
BUILD = 1800.0  # seconds that a build may take
SUITE = "bookworm"  # with Python 3.11, as Raspberry Pi OS of 2023 and as the base of the Dockerfile
USER = "pi"
BOOT = 90.0  # seconds that it may take until all services were started
LIFE = 3000  # seconds after which Podman ends it
# Without them, systemd in a container silently leaves out the protections of units.
RIGHTS = ("--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined")
MAKING = 900.0  # that making one may take; 65 to 91 were measured


class Podman:
    """Podman's commands. Leaving the ``with`` block removes all containers and images."""

    def __init__(self) -> None:
        self.storage = CACHE / "storage"
        self._settings = CACHE / "containers.conf"
        # Containers in it find each other by name. All storages of a machine share one file of
        # names per network. In two networks of one name, containers would not find each other.
        self.network = f"{NAME}-{os.getpid()}"

    def __enter__(self) -> Self:
        """Prepare the storage.

        Raises:
            Impossible: Podman is missing, or this process may not use it.
        """
        require_programs(["podman", "runc", "mmdebstrap"], PACKAGES)
        if os.geteuid() != 0:
            raise Impossible("this user is not root, as the bases need it: sudo make boards")
        self._settings.write_text(_settings(_packages(CACHE)))
        self._discard()  # what an earlier process has left
        self.storage.mkdir(exist_ok=True)
        try:
            self.ask("network", "create", self.network)
        except RunError as error:
            raise Impossible(f"Podman cannot keep images here: {error}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *problem: object) -> None:
        if kind is KeyboardInterrupt:  # a second one would leave containers
            for interruption in (signal.SIGINT, signal.SIGTERM):
                signal.signal(interruption, signal.SIG_IGN)
        self._discard()

    def _discard(self) -> None:
        """Remove the storage with everything in it."""
        # Podman 4.3 may deadlock. A command that is ended releases its locks, so try twice.
        for words in (REMOVE, REMOVE, ("network", "prune", "--force"), ("rmi", "--all", "--force")):
            with suppress(RunError, OSError):
                self.ask(*words, seconds=REMOVAL)
        shutil.rmtree(self.storage, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of Podman's commands."""
        return {
            **os.environ,
            "CONTAINERS_CONF": str(self._settings),
            "BUILDAH_ISOLATION": "chroot",
            "DISABLE_HC_SYSTEMD": "true",
        }

    def command(self, *words: object) -> list[str]:
        """Podman's command line, with this storage."""
        places = {
            "--root": self.storage / "root",
            "--runroot": self.storage / "run",
            "--tmpdir": self.storage / "tmp",
            "--network-config-dir": self.storage / "networks",
        }
        options = [f"{option}={path}" for option, path in places.items()]
        return ["podman", *options, *map(str, words)]

    def ask(self, *words: object, seconds: float = ANSWER) -> str:
        """Run a command of Podman; return its output.

        Raises:
            RunError: it failed, or did not end in time.
        """
        return ask(
            self.command(*words),
            environment=self.environment,
            seconds=seconds,
            name=" ".join(map(str, ["podman", *words])),
        )

    def megabytes(self, image: str) -> float:
        """Size of an image with all its layers."""
        return float(self.ask("image", "inspect", "--format", "{{.Size}}", image)) / 1e6

    def build(self, image: str, target: str) -> None:
        """Build an image from this clone, up to a stage of the Dockerfile."""
        words = ["build", "--network", "host", "--pull-never", "--target", target]
        words += ["--format", "docker"]  # the other format has no health checks
        self.ask(*words, "--tag", image, "--file", FILE, PROJECT, seconds=BUILD)


def _settings(volumes: Sequence[str]) -> str:
    """Podman's settings: locks of its own, and limits that this process may pass on."""
    limits = []
    for name, number, desired in LIMITS:
        hard_limit = resource.getrlimit(number)[1]
        value = desired if hard_limit == resource.RLIM_INFINITY else min(hard_limit, desired)
        limits.append(f"{name}={value}:{value}")
    engine = {"cgroup_manager": "cgroupfs", "events_logger": "file", "lock_type": "file"}
    containers = {"default_ulimits": limits, "volumes": volumes}
    return tomli_w.dumps({"containers": containers, "engine": engine})


def _packages(folder: Path) -> list[str]:
    """Tell pip and uv in builds and containers where packages come from on this machine.

    They read it from settings of the whole machine, as an administrator would write them, since
    ``sudo`` removes environment variables. Returns the mounts, as ``source:target:ro``.
    """
    pip, uv = ConfigParser(interpolation=None), dict[str, Any]()
    pip.add_section("global")
    for name in INDEX:
        addresses = os.environ.get(f"PIP_{name}", "").split()
        addresses += os.environ.get(f"UV_{name}", "").replace(",", " ").split()
        if values := list(dict.fromkeys(addresses)):
            key = name.lower().replace("_", "-")
            pip["global"][key] = "\n".join(values)
            uv[key] = values[0] if name == "INDEX_URL" else values
    with (folder / "pip.conf").open("w") as file:
        pip.write(file)
    uv["native-tls"] = True  # else uv trusts only its own authorities
    (folder / "uv.toml").write_text(tomli_w.dumps(uv))
    mounts = [f"{folder}/pip.conf:/etc/pip.conf:ro", f"{folder}/uv.toml:/etc/uv/uv.toml:ro"]
    local = {Path(word) for word in uv.get("find-links", ()) if os.path.isabs(word)}
    return mounts + [f"{p}:{p}:ro" for p in sorted({*local, CERTIFICATES}) if p.is_dir()]


# -- root file systems that need no registry of images ------------------------------------------


def make_base(podman: Podman, name: str, packages: Sequence[str], *hooks: str) -> str:
    """Make the image of a root file system; its file outlasts the image.

    Args:
        podman: that has the image.
        name: of the file and the image.
        packages: beside the essential ones.
        hooks: commands that change it; ``$1`` is its folder.

    Raises:
        Impossible: this machine cannot make it, or starts no containers.
    """
    path = CACHE / "bases" / f"{name}.tar"
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name(f".{path.name}")
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
    command += [f"--customize-hook={hook}" for hook in hooks]
    image = f"localhost/{NAME}-{name}:latest"
    try:
        if not path.exists():
            ask([*command, SUITE, str(draft)], seconds=MAKING)
            draft.rename(path)
        podman.ask("import", path, image, seconds=300)
        podman.ask("run", "--rm", f"--network={podman.network}", "--pull", "never", image, "true")
    except RunError as error:
        raise Impossible(f"containers cannot be made or started here: {error}") from None
    return image


# -- machines with a service manager ------------------------------------------------------------


class Machine:
    """A container with systemd, and a user who types commands.

    Args:
        podman: that starts it.
        name: of the machine.
        image: a base with systemd and the user.
        options: further options of ``podman run``.

    Raises:
        Impossible: it does not boot.
    """

    def __init__(self, podman: Podman, name: str, image: str, options: Sequence[str]) -> None:
        self.name = name
        self._podman = podman
        self._container = f"{NAME}-{name}"
        self.home = f"/home/{USER}"
        words = ["--systemd", "always", "--timeout", str(LIFE), "--hostname", name]
        words += [*RIGHTS, *options]
        try:  # nothing of this project is in it yet
            words = ["run", "--detach", "--name", self._container, "--pull", "never", *words]
            podman.ask(*words, image, "/sbin/init")
            self.wait()
        except RunError as error:
            raise Impossible(f"systemd cannot be started in a container here: {error}") from None

    def wait(self) -> float:
        """Wait until it has booted; return the seconds that it took."""
        return wait_for(self._has_booted, f"{self.name} has booted", BOOT)

    def type(self, commands: str, seconds: float) -> str:
        """Log in and run commands as the user; return their output.

        Raises:
            RunError: one failed, or they did not end in time.
        """
        options = ["--user", USER, "--workdir", self.home, f"--env=HOME={self.home}"]
        words = ["exec", *options, self._container, "bash", "-e", "-c", commands]
        return self._podman.ask(*words, seconds=seconds).strip()

    def receive(self, folder: Path) -> None:
        """Copy a folder into the user's home, as ``scp -r`` does."""
        self._podman.ask("cp", folder, f"{self._container}:{self.home}/")
        self.root("chown", "-R", f"{USER}:", self.home)

    def root(self, *command: object, seconds: float = 60.0) -> str:
        """Run a command as root, for the harness and not for the page's reader."""
        return self._podman.ask("exec", self._container, *command, seconds=seconds)

    def cut(self) -> None:
        """Cut the power, and boot the machine again with its files."""
        self._podman.ask("kill", "--signal", "KILL", self._container)
        self._podman.ask("start", self._container)
        self.wait()

    def fetch(self, folder: str, parent: Path) -> Path:
        """Copy a folder of the machine to this one; return the copy's path."""
        copy = parent / Path(folder).name
        shutil.rmtree(copy, ignore_errors=True)
        self._podman.ask("cp", f"{self._container}:{folder}", parent)
        return copy

    def _has_booted(self) -> bool:
        try:  # its status is not 0 while it starts, or if a service has failed
            state = self.root("sh", "-c", "systemctl is-system-running || true")
        except RunError:  # it does not take commands yet
            return False
        return state.strip() in ("running", "degraded")
