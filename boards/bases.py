"""Root file systems that need no registry of images: made from Debian's packages, and kept."""

from collections.abc import Sequence
from pathlib import Path

from boards.podman import NAME, Podman, ask
from boards.row import Disappointed, Impossible

SUITE = "bookworm"  # with Python 3.11, as Raspberry Pi OS of 2023 and as the base of the Dockerfile
# What the Dockerfile needs of its base.
SLIM = ("python3", "python3-venv", "ca-certificates")
# What Raspberry Pi OS Lite has of what the pages use.
BOARD = (
    *("systemd", "systemd-sysv", "dbus", "sudo", "python3", "ca-certificates"),
    *("procps", "iproute2", "curl"),
)
USER = "pi"
# As Raspberry Pi OS has them: a user who may use sudo without a password, and read the journal.
HOOKS = (
    f'chroot "$1" useradd --create-home --shell /bin/bash --groups sudo,adm {USER}',
    f'echo "{USER} ALL=(ALL) NOPASSWD: ALL" >"$1/etc/sudoers.d/010_{USER}"',
)
SECONDS = 900.0  # that making one may take


def slim(podman: Podman) -> str:
    """The image of a small Debian with Python, as a base of the Dockerfile."""
    return _image(podman, "slim", SLIM)


def board(podman: Podman) -> str:
    """The image of a board's system: a service manager, and a user with sudo."""
    return _image(podman, "board", BOARD, HOOKS)


def _image(podman: Podman, name: str, packages: Sequence[str], hooks: Sequence[str] = ()) -> str:
    image = f"localhost/{NAME}-{name}:latest"
    if not podman.has(image):
        podman.ask("import", _archive(podman.cache, name, packages, hooks), image, seconds=300)
        try:
            podman.once(image, "true", options=[podman.network()])
        except Disappointed as error:
            raise Impossible(f"containers cannot be started here: {error}") from None
    return image


def _archive(cache: Path, name: str, packages: Sequence[str], hooks: Sequence[str]) -> Path:
    """The file of a root file system; it is made only once."""
    path = cache / "bases" / f"{name}.tar"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f".{name}.tar")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
        command += [f"--customize-hook={hook}" for hook in hooks]
        try:
            ask([*command, SUITE, str(draft)], seconds=SECONDS)
        except Disappointed as error:
            raise Impossible(f"Debian's packages cannot be unpacked here: {error}") from None
        draft.rename(path)
    return path
