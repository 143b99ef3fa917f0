"""The images of ``docker/Dockerfile``, built on a base made here."""

from boards import bases
from boards.podman import PROJECT, Podman

PYTHON = "docker.io/library/python:3.11-slim-bookworm"  # the Dockerfile's default base
SMALL = "localhost/fl-app-small:latest"
SUPERNODE, SUPERLINK = "localhost/fl-app-supernode:latest", "localhost/fl-app-superlink:latest"


def make_base(podman: Podman) -> str:
    """Make a base under the name that the Dockerfile expects, so that nothing is pulled."""
    image = bases.slim(podman)
    podman.ask("tag", image, PYTHON)
    return f"Debian's {bases.SUITE} with Python, {podman.megabytes(image):,.0f} MB"


def build(podman: Podman) -> str:
    """Build the images of server and device."""
    sizes = []
    for image, target in ((SUPERNODE, "supernode"), (SUPERLINK, "superlink")):
        podman.build(image, PROJECT, target=target)
        sizes.append(f"{target} {podman.megabytes(image):,.0f} MB")
    return f"{', '.join(sizes)}, with the base"


def build_small(podman: Podman) -> str:
    """Build the image of a device without torch; let it examine itself."""
    podman.build(SMALL, PROJECT, target="supernode", arguments=["TORCH=none"])
    podman.once(SMALL, "python", "-c", "import fl_app.client_app")
    return f"{podman.megabytes(SMALL):,.0f} MB with the base"
