"""Podman, with a storage and settings of its own: images and containers of others are not touched.

It asks for no limits above those of this process, and for no service manager on this machine.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from fl_app.field.processes import end
from lab.boards.steps import (
    ANSWER,
    PROJECT,
    Disappointed,
    Impossible,
    ask,
    require_programs,
    wait_for,
)

CACHE = PROJECT / "outputs" / "boards"  # what outlasts a run
NAME = "fl-boards"  # with which the names of containers, images and networks begin
REMOVE = ("rm", "--all", "--force", "--time", "0", "--volumes")
REMOVAL = 45.0  # seconds that this may take
# Name, number and value. Podman's own are higher than a container engine in a container may set.
LIMITS = (
    ("nofile", resource.RLIMIT_NOFILE, 8192),
    ("nproc", resource.RLIMIT_NPROC, 4096),
)
PACKAGES = "apt install podman buildah runc catatonit mmdebstrap fuse-overlayfs aardvark-dns"
INDEX = ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS")  # of PIP_ and UV_
CERTIFICATES = Path("/etc/ssl/certs")  # of this machine, which may trust more than a new one
FILE = PROJECT / "docker" / "Dockerfile"
BUILD = 1800.0  # seconds that a build may take


class Podman:
    """Podman's commands. Leaving the ``with`` block removes all containers.

    Args:
        cache: folder for the storage, the settings, and the bases of images.
    """

    def __init__(self, cache: Path = CACHE) -> None:
        self.cache = cache
        self.storage = self.cache / "storage"
        # All storages of a machine share one file of names per network. In two networks of one
        # name, containers would not find each other.
        self.network_name = f"{NAME}-{zlib.crc32(str(self.cache).encode()):08x}"
        self._settings = self.cache / "containers.conf"

    def __enter__(self) -> Self:
        """Prepare the storage.

        Raises:
            Impossible: Podman is missing, or this process may not use it.
        """
        require_programs(["podman", "runc", "mmdebstrap"], PACKAGES)
        if os.geteuid() != 0:
            raise Impossible("this user is not root, as the bases need it: sudo make boards")
        self.storage.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(_settings(_packages(self.cache)))
        try:
            self.ask("info")
        except Disappointed as error:
            raise Impossible(f"Podman cannot keep images here: {error}") from None
        self.clear()
        # Its standard input ends with this process, however that ends.
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read -r _; exec "$@"', "sh", *self.command(*REMOVE)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is KeyboardInterrupt:  # a second one would leave containers
            for interruption in (signal.SIGINT, signal.SIGTERM):
                signal.signal(interruption, signal.SIG_IGN)
        self.clear()
        with suppress(subprocess.TimeoutExpired):
            self._guard.communicate(timeout=ANSWER)
        end(self._guard, grace=5.0)

    def clear(self) -> None:
        """Remove all containers, volumes and networks of this storage."""
        # Podman 4.3 may wait for itself for ever; what is ended gives its locks back.
        for _ in range(2):
            with suppress(Disappointed, OSError):
                self.ask(*REMOVE, seconds=REMOVAL)
                break
        with suppress(Disappointed, OSError):
            self.ask("network", "prune", "--force")

    def discard(self) -> None:
        """Remove the storage with everything in it."""
        self.clear()
        with suppress(Disappointed, OSError):
            self.ask("rmi", "--all", "--force")
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
        """Run a command of Podman; return what it printed.

        Raises:
            Disappointed: it failed, or did not end in time.
        """
        return ask(
            self.command(*words),
            environment=self.environment,
            seconds=seconds,
            name=" ".join(map(str, ["podman", *words])),
        )

    def has(self, image: str) -> bool:
        """Whether an image is there."""
        return image in self.ask("images", "--format", "{{.Repository}}:{{.Tag}}").split()

    def megabytes(self, image: str) -> float:
        """Size of an image with all its layers."""
        return float(self.ask("image", "inspect", "--format", "{{.Size}}", image)) / 1e6

    def build(self, image: str, target: str) -> None:
        """Build an image from this clone, up to a stage of the Dockerfile."""
        words = ["build", "--network", "host", "--pull-never", "--target", target]
        words += ["--format", "docker"]  # the other format has no health checks
        self.ask(*words, "--tag", image, "--file", FILE, PROJECT, seconds=BUILD)

    def network(self) -> str:
        """Create a network in which containers know each other by name; return its option."""
        if self.network_name not in self.ask("network", "ls", "--format", "{{.Name}}").split():
            self.ask("network", "create", self.network_name)
        return f"--network={self.network_name}"

    def start(
        self, name: str, image: str, *command: object, options: Sequence[str] = ()
    ) -> "Container":
        """Start a container in the background.

        Args:
            name: of the container, without the prefix that all have.
            image: from which it is made.
            command: to run in it; none = that of the image.
            options: further options of ``podman run``.
        """
        full = f"{NAME}-{name}"
        self.ask("run", "--detach", "--name", full, "--pull", "never", *options, image, *command)
        return Container(self, full)

    def once(
        self,
        image: str,
        *command: object,
        options: Sequence[str] = (),
        seconds: float = ANSWER,
    ) -> str:
        """Run a command in a new container to its end; return what it printed."""
        words = ["run", "--rm", "--timeout", str(int(seconds)), "--pull", "never", *options]
        return self.ask(*words, image, *command, seconds=seconds + 30)


class Container:
    """A container that was started.

    Args:
        podman: to which it belongs.
        name: of the container.
    """

    def __init__(self, podman: Podman, name: str) -> None:
        self._podman = podman
        self.name = name

    def ask(self, *command: object, options: Sequence[str] = (), seconds: float = ANSWER) -> str:
        """Run a command in the container; return what it printed.

        Raises:
            Disappointed: it failed, or did not end in time.
        """
        return self._podman.ask("exec", *options, self.name, *command, seconds=seconds)

    def state(self, template: str) -> str:
        """What Podman knows of the container, such as ``{{.State.Pid}}``."""
        return self._podman.ask("inspect", "--format", template, self.name).strip()

    def kill(self) -> None:
        """End all of its processes at once, as a power failure does."""
        self._podman.ask("kill", "--signal", "KILL", self.name)

    def crash(self) -> float:
        """Kill its first process, as the kernel does for want of memory.

        Returns:
            Seconds until it was started again: Podman does this if the container's policy says so,
            but not after its own command ``kill``.
        """

        def process() -> int:
            return int(self.state("{{.State.Pid}}"))

        if not (before := process()):
            raise Disappointed(f"{self.name} does not run")
        os.kill(before, signal.SIGKILL)
        return wait_for(lambda: process() not in (0, before), "it is started again", 60.0)

    def start(self) -> None:
        """Start it again, with the files that it had."""
        self._podman.ask("start", self.name)

    def put(self, source: Path, target: str) -> None:
        """Copy a file or a folder into it."""
        self._podman.ask("cp", source, f"{self.name}:{target}")

    def get(self, source: str, target: Path) -> None:
        """Copy a file or a folder out of it, into a folder."""
        self._podman.ask("cp", f"{self.name}:{source}", target)


def _settings(mounted: Sequence[str]) -> str:
    """Podman's settings: locks of its own, and limits that this process may pass on."""
    limits = []
    for name, number, enough in LIMITS:
        most = resource.getrlimit(number)[1]
        value = enough if most == resource.RLIM_INFINITY else min(most, enough)
        limits.append(f"{name}={value}:{value}")
    return (
        "[containers]\n"
        f"default_ulimits = {json.dumps(limits)}\n"
        f"volumes = {json.dumps(mounted)}\n"
        "[engine]\n"
        'cgroup_manager = "cgroupfs"\n'
        'events_logger = "file"\n'
        'lock_type = "file"\n'
    )


def _packages(folder: Path) -> list[str]:
    """Tell pip and uv in builds and containers where packages come from on this machine.

    They read it from settings of the whole machine, as an administrator would write them: ``sudo``
    removes environment variables, and not these. Returns what to mount, as ``source:target:ro``.
    """
    words = {name: os.environ.get(f"PIP_{name}", "").split() for name in INDEX}
    for name in INDEX:
        words[name] += os.environ.get(f"UV_{name}", "").replace(",", " ").split()
    pip, uv = ["[global]"], ["native-tls = true"]  # else uv trusts only its own authorities
    for name, found in words.items():
        if values := list(dict.fromkeys(found)):
            key = name.lower().replace("_", "-")
            pip += [f"{key} =", *(f"    {value}" for value in values)]
            uv.append(f"{key} = {json.dumps(values[0] if name == 'INDEX_URL' else values)}")
    mounts = []
    for target, lines in (("/etc/pip.conf", pip), ("/etc/uv/uv.toml", uv)):
        path = folder / Path(target).name
        path.write_text("\n".join(lines) + "\n")
        mounts.append(f"{path}:{target}:ro")
    local = {Path(word) for word in words["FIND_LINKS"] if os.path.isabs(word)}
    return mounts + [f"{p}:{p}:ro" for p in sorted({*local, CERTIFICATES}) if p.is_dir()]
