"""The images of ``docker/Dockerfile``, built on a base made here."""

import tempfile
from pathlib import Path

from boards import bases
from boards.podman import Podman
from boards.row import Disappointed

PYTHON = "docker.io/library/python:3.11-slim-bookworm"  # the Dockerfile's default base
ON_TORCH = "localhost/fl-app-on-torch:latest"
WITH_TORCH = "localhost/fl-boards-with-torch:latest"
TORCH = "/opt/torch"  # of that base
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


def build_on_torch(podman: Podman) -> str:
    """Build the image of a device on a base that brings a torch, as those of NVIDIA do."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "Dockerfile"
        site, visible = f"{TORCH}/lib/python3.11/site-packages", "/usr/local/lib/python3.11"
        file.write_text(
            f"FROM {PYTHON}\n"
            "COPY constraints.txt fl_app/field/packages.py ./\n"
            f"RUN python3 packages.py --venv {TORCH} --torch cpu --constraints constraints.txt "
            f"numpy torch torchvision && echo {site} >{visible}/dist-packages/torch.pth\n"
        )
        podman.build(WITH_TORCH, file=file)
    podman.build(ON_TORCH, target="supernode", arguments=[f"BASE={WITH_TORCH}"])
    used = podman.once(ON_TORCH, "python", "-c", "import torch; print(torch.__file__)").strip()
    if not used.startswith(TORCH):
        raise Disappointed(f"{used} is not the torch of the base, which is in {TORCH}")
    base, whole = podman.megabytes(WITH_TORCH), podman.megabytes(ON_TORCH)
    return f"{used} is used; {base:,.0f} MB, and {whole:,.0f} MB with the app"
