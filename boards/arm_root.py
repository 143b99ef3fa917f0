"""The root file system of a 64-bit ARM board, and processes in it under QEMU.

Debian's mmdebstrap makes it, QEMU's user mode runs its programs, chroot enters it. Packages are
installed from outside, at this machine's speed.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from boards.row import Disappointed, Impossible
from boards.wheels import download_bytes, tags_of
from fl_app.field.packages import megabytes

SUITE, PYTHON = "bookworm", "3.11"  # as Raspberry Pi OS of 2023 to 2025
PACKAGES = "python3,python3-venv"
UV = str(Path(sys.executable).with_name("uv"))
GLIBC = (2, 28)
PLATFORM = f"aarch64-manylinux_{GLIBC[0]}_{GLIBC[1]}"
VENV = "/opt/fl-app/.venv"  # in the root, as `docs/edge.md` and the kit have it
CPUS = ("cortex-a72", "cortex-a76")  # of a Raspberry Pi 4 and of a Raspberry Pi 5
# 7.2 of Debian 12 crashes when torch is imported, 10.0 of its backports does not.
QEMU, LEAST_QEMU = "qemu-aarch64-static", (10, 0)
REGISTER = "register it with `/usr/lib/systemd/systemd-binfmt`"
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "arch-test": "arch-test",
    QEMU: "qemu-user-static",
    "unshare": "util-linux",
    "chroot": "coreutils",
}
# A namespace of processes of its own: whatever is started in it ends with its first process, also
# a QEMU that hangs. Its own mounts: nothing stays mounted.
ISOLATED = ("unshare", "--mount-proc", "--pid", "--fork", "--kill-child", "--")
ENTER = (
    'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/tmp" '
    '&& exec chroot "$0" "$@"'
)
TAIL = 5  # lines that are shown of a command that failed
BUILD = 3600.0  # seconds that mmdebstrap may take; 330 were measured


def require_emulation() -> None:
    """Return if this machine can run programs for ARM in a root of their own.

    Raises:
        Impossible: it lacks something.
    """
    if os.geteuid() != 0:
        raise Impossible("chroot and mmdebstrap need root's rights here: run it as root")
    if lacking := [package for name, package in PROGRAMS.items() if not shutil.which(name)]:
        raise Impossible(f"apt install {' '.join(lacking)}")
    if (found := qemu_version(_output(QEMU, "--version"))) < LEAST_QEMU:
        raise Impossible(
            f"QEMU {'.'.join(map(str, found))} must be {'.'.join(map(str, LEAST_QEMU))} or newer, "
            "because it crashes when torch is imported: install qemu-user-static of Debian 12's "
            f"backports and {REGISTER}, as the kernel keeps the interpreter that it knows"
        )
    if subprocess.run(["arch-test", "arm64"], capture_output=True).returncode:
        raise Impossible(
            f"the kernel does not start programs for arm64: {REGISTER}; before, where it is not "
            "mounted, `mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc`"
        )
    probe = subprocess.run([*ISOLATED, "true"], capture_output=True, text=True)
    if probe.returncode:
        raise Impossible(f"namespaces of mounts and processes: {probe.stderr.strip()}")


def qemu_version(text: str) -> tuple[int, ...]:
    """Return QEMU's version from what its option --version prints; () if it is not in there."""
    found = re.search(r"version (\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def finish(command: Sequence[str], limit: float) -> str:
    """Run a command to its end and return its output.

    Raises:
        Disappointed: it failed; with the end of what it said.
        TimeoutExpired: it did not end in time.
    """
    return output_of(
        subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit)
    )


def output_of(result: "subprocess.CompletedProcess[str]") -> str:
    """Return the output of a command that ended with 0.

    Raises:
        Disappointed: it failed; with the end of what it said.
    """
    if result.returncode:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()[-TAIL:]
        what = " ".join(map(str, result.args))[-200:]
        raise Disappointed(f"{what}: status {result.returncode}: {' | '.join(said)}")
    return result.stdout


class Root:
    """A root file system.

    Args:
        folder: absolute path; `build` makes it.
        architecture: Debian's name.
    """

    def __init__(self, folder: Path, architecture: str = "arm64") -> None:
        self.folder = folder
        self._architecture = architecture

    def build(self, packages: str = PACKAGES) -> bool:
        """Make the root, unless it is there; return whether it was made.

        Raises:
            Disappointed: mmdebstrap failed.
            TimeoutExpired: it took too long.
        """
        if self.folder.is_dir():
            return False
        draft = self.folder.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.parent.mkdir(parents=True, exist_ok=True)
        make = [*ISOLATED, "mmdebstrap", f"--architectures={self._architecture}"]
        finish([*make, "--variant=minbase", f"--include={packages}", SUITE, str(draft)], BUILD)
        draft.rename(self.folder)
        return True

    def copy(self, folder: Path) -> "Root":
        """Return a root with the same files, in place of what is in `folder`."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        finish(["cp", "--archive", "--reflink=auto", str(self.folder), str(folder)], BUILD)
        return Root(folder, self._architecture)

    def at(self, inside: str) -> Path:
        """Return where an absolute path of the root lies outside."""
        return self.folder / inside.lstrip("/")

    def run(
        self,
        *words: str,
        limit: float,
        cpu: str = CPUS[0],
        environment: Mapping[str, str] = {},
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in the root to its end.

        Args:
            words: of the command.
            limit: seconds after which it is ended with all that it started.
            cpu: QEMU's name of the processor.
            environment: beside the few variables that a login sets.

        Raises:
            TimeoutExpired: it did not end in time.
        """
        return subprocess.run(
            self._command(words),
            env=self._environment(cpu, environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
        )

    def start(
        self, *words: str, log: IO[bytes], cpu: str, environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Start a command in the root; it leads a process group."""
        return subprocess.Popen(
            self._command(words),
            env=self._environment(cpu, environment),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _command(self, words: Sequence[str]) -> list[str]:
        return [*ISOLATED, "sh", "-c", ENTER, str(self.folder), *words]

    def _environment(self, cpu: str, more: Mapping[str, str]) -> dict[str, str]:
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "COLUMNS": "200",
            "QEMU_CPU": cpu,
            "OMP_NUM_THREADS": "1",  # a second thread would only spin on an emulated processor
            **more,
        }

    def make_venv(self) -> None:
        """Make an empty virtual environment at `VENV`, in place of an earlier one."""
        output_of(self.run("python3", "-m", "venv", "--clear", "--without-pip", VENV, limit=600))

    def install(self, *arguments: str, limit: float = 1800.0) -> None:
        """Install packages into the virtual environment from outside, with their bytecode.

        Args:
            arguments: requirements and options of ``uv pip install``.
            limit: seconds.

        Raises:
            Disappointed: uv failed.
        """
        site = self.at(f"{VENV}/lib/python{PYTHON}/site-packages")
        command = [
            *(UV, "pip", "install", "--compile-bytecode", "--target", str(site)),
            *("--python-platform", PLATFORM, "--python-version", PYTHON, *arguments),
        ]
        finish(command, limit)
        move_commands(site / "bin", self.at(f"{VENV}/bin"))

    def download(self, *arguments: str, limit: float = 600.0) -> dict[str, int]:
        """Return the bytes that `install` downloads into an empty cache, by package.

        Args:
            arguments: as of `install`.
            limit: seconds.

        Raises:
            Disappointed: uv failed.
            ValueError: a package has no file for the board.
        """
        command = [
            *(UV, "pip", "compile", "--quiet", "--format", "pylock.toml"),
            *("--python-platform", PLATFORM, "--python-version", PYTHON, *arguments),
        ]
        return download_bytes(finish(command, limit), tags_of(PYTHON, "aarch64", GLIBC))

    def megabytes(self, inside: str = "/") -> float:
        """Return the size of the files below a path, in units of 10^6 bytes."""
        return megabytes(self.at(inside))


def move_commands(installed: Path, folder: Path) -> None:
    """Move commands to the virtual environment's folder, and have its Python run them.

    uv writes the path of this machine's Python into their first lines.
    """
    for path in installed.iterdir() if installed.is_dir() else ():
        content = path.read_bytes()
        if content.startswith(b"#!") and b"python" in content.partition(b"\n")[0]:
            path.write_bytes(f"#!{VENV}/bin/python\n".encode() + content.partition(b"\n")[2])
        path.replace(folder / path.name)
