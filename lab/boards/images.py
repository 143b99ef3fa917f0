"""The images of ``docker/Dockerfile``, built on a base made here."""

from lab.boards import bases
from lab.boards.podman import Podman

PYTHON = "docker.io/library/python:3.11-slim-bookworm"  # the Dockerfile's default base
SUPERNODE, SUPERLINK = "localhost/fl-app-supernode:latest", "localhost/fl-app-superlink:latest"


def make_base(podman: Podman) -> str:
    """Make a base under the name that the Dockerfile expects, so that nothing is pulled."""
    image = bases.make(podman, bases.SLIM)
    podman.ask("tag", image, PYTHON)
    return f"Debian's {bases.SUITE} with Python, {podman.megabytes(image):,.0f} MB"


def build(podman: Podman) -> str:
    """Build the images of server and device."""
    sizes = []
    for image, target in ((SUPERNODE, "supernode"), (SUPERLINK, "superlink")):
        podman.build(image, target=target)
        sizes.append(f"{target} {podman.megabytes(image):,.0f} MB")
    return f"{', '.join(sizes)}, with the base"
