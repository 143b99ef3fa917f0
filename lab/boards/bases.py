"""Root file systems that need no registry of images: made from Debian's packages, and kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.boards.podman import NAME, Podman
from lab.boards.steps import Disappointed, Impossible, ask

SUITE = "bookworm"  # with Python 3.11, as Raspberry Pi OS of 2023 and as the base of the Dockerfile
USER = "pi"
EMULATED = ("QEMU_CPU=cortex-a72", "OMP_NUM_THREADS=1")
SECONDS = 900.0  # that making one may take; 65 to 91 were measured, 216 under emulation


@dataclass(frozen=True, slots=True)
class Base:
    """A root file system.

    Attributes:
        name: of its file and its image.
        packages: beside the essential ones.
        hooks: commands that change it, where ``$1`` is its folder.
        architecture: Debian's name; "" = this machine's.
        leaves_out: files that are not unpacked, as patterns of dpkg.
        keeps: those of them that are.
    """

    name: str
    packages: Sequence[str]
    hooks: Sequence[str] = ()
    architecture: str = ""
    leaves_out: Sequence[str] = ()
    keeps: Sequence[str] = ()


# What the Dockerfile needs of its base, without what Debian's images called slim leave out.
SLIM = Base(
    "slim",
    ("python3", "python3-venv", "ca-certificates"),
    leaves_out=tuple(f"/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")),
    keeps=("/usr/share/doc/*/copyright",),
)
# What Raspberry Pi OS Lite has of what the pages use, and a user as it has: sudo needs no password,
# and the journal may be read.
BOARD = Base(
    "board",
    (
        *("systemd", "systemd-sysv", "dbus", "sudo", "python3", "ca-certificates"),
        *("procps", "iproute2", "curl"),
    ),
    (
        f'chroot "$1" useradd --create-home --shell /bin/bash --groups sudo,adm {USER}',
        f'echo "{USER} ALL=(ALL) NOPASSWD: ALL" >"$1/etc/sudoers.d/010_{USER}"',
    ),
)
# A Raspberry Pi 4. QEMU hears from its environment which processor it is, also for services and
# behind sudo. A second thread of torch would only spin on it.
ARM = Base(
    "arm",
    BOARD.packages,
    (
        *BOARD.hooks,
        'mkdir "$1/etc/systemd/system.conf.d"',
        f"printf '[Manager]\\nDefaultEnvironment={' '.join(EMULATED)}\\n' "
        '>"$1/etc/systemd/system.conf.d/emulation.conf"',
        f"echo 'Defaults env_keep += \"{' '.join(word.partition('=')[0] for word in EMULATED)}\"' "
        '>"$1/etc/sudoers.d/020_emulation"',
    ),
    "arm64",
)


def make(podman: Podman, base: Base) -> str:
    """The image of a base; it is made only once.

    Raises:
        Impossible: this machine cannot make it, or starts no containers.
    """
    image = f"localhost/{NAME}-{base.name}:latest"
    if not podman.has(image):
        podman.ask("import", _archive(podman.cache, base), image, seconds=300)
        try:
            podman.once(image, "true", options=[podman.network()])
        except Disappointed as error:
            raise Impossible(f"containers cannot be started here: {error}") from None
    return image


def _archive(cache: Path, base: Base) -> Path:
    """The file of a root file system, which outlasts the images."""
    path = cache / "bases" / f"{base.name}.tar"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f".{path.name}")
        command = ["mmdebstrap", "--quiet", "--variant=minbase"]
        command += [f"--include={','.join(base.packages)}"]
        command += [f"--customize-hook={hook}" for hook in base.hooks]
        command += [f"--architectures={base.architecture}"] if base.architecture else []
        command += [f"--dpkgopt=path-exclude={pattern}" for pattern in base.leaves_out]
        command += [f"--dpkgopt=path-include={pattern}" for pattern in base.keeps]
        try:
            ask([*command, SUITE, str(draft)], seconds=SECONDS)
        except Disappointed as error:
            raise Impossible(f"Debian's packages cannot be unpacked here: {error}") from None
        draft.rename(path)
    return path
