"""The images of ``docker/Dockerfile``, built on a base made here."""

from boards import bases
from boards.podman import PROJECT, Podman

PYTHON = "docker.io/library/python:3.11-slim-bookworm"  # the Dockerfile's default base
SUPERNODE, SUPERLINK = "localhost/fl-app-supernode:latest", "localhost/fl-app-superlink:latest"


def make_base(podman: Podman) -> str:
    """Make a base under the name that the Dockerfile expects, so that nothing is pulled."""
    image = bases.slim(podman)
    podman.ask("tag", image, PYTHON)
    return f"Debian's {bases.SUITE} with Python, {podman.megabytes(image):,.0f} MB"


def build_one(podman: Podman, image: str, *, base: str = PYTHON, target: str = "supernode") -> None:
    """Build an image.

    Args:
        podman: that builds it.
        image: its name.
        base: image to begin with.
        target: stage of the Dockerfile.
    """
    podman.build(image, PROJECT, target=target, arguments=[f"BASE={base}"])


def build(podman: Podman) -> str:
    """Build both images; they share all layers but their settings."""
    build_one(podman, SUPERNODE, target="supernode")
    build_one(podman, SUPERLINK, target="superlink")
    return f"{podman.megabytes(SUPERNODE):,.0f} MB with the base"
