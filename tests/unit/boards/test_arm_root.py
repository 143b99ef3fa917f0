"""Processes in a root of their own end with it; commands run the root's Python."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from boards.arm_root import ISOLATED, VENV, Root, move_commands, output_of, qemu_version
from boards.row import Disappointed

isolated = pytest.mark.skipif(
    os.geteuid() != 0
    or not shutil.which("unshare")
    or bool(subprocess.run([*ISOLATED, "true"], capture_output=True).returncode),
    reason="needs root's rights and namespaces",
)


def test_versions_of_qemu():
    assert qemu_version("qemu-aarch64 version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright") == (7, 2)
    assert qemu_version("qemu-aarch64 version 10.0.2 (Debian 1:10.0.2)") == (10, 0)
    assert qemu_version("") == ()


@isolated
def test_a_process_that_hangs_is_ended_with_its_children():
    mark = f"{os.getpid()}.25"
    with pytest.raises(subprocess.TimeoutExpired):
        Root(Path("/")).run("sh", "-c", f"sleep {mark} & trap '' TERM; sleep {mark}", limit=0.5)
    deadline = time.monotonic() + 5
    while left := _running(mark):
        assert time.monotonic() < deadline, left


def _running(mark: str) -> list[str]:
    return subprocess.run(
        ["pgrep", "-f", f"^sleep {mark}$"], capture_output=True, text=True
    ).stdout.split()


@isolated
def test_a_command_in_a_root_sees_its_processor_and_its_own_processes():
    result = Root(Path("/")).run("sh", "-c", "echo $$ $QEMU_CPU", cpu="cortex-a53", limit=10)
    assert output_of(result).split() == ["1", "cortex-a53"]


def test_a_command_that_fails_says_why():
    result = subprocess.run(["sh", "-c", "echo no such thing >&2; exit 3"], **CAPTURED)
    with pytest.raises(Disappointed, match=r"status 3: no such thing"):
        output_of(result)


CAPTURED = {"capture_output": True, "text": True}


def test_commands_run_the_python_of_the_root(tmp_path: Path):
    installed, folder = tmp_path / "site/bin", tmp_path / "bin"
    installed.mkdir(parents=True)
    folder.mkdir()
    script, program = installed / "flwr", installed / "uv"
    script.write_bytes(b"#!/usr/bin/python3.11\nprint()\n")
    program.write_bytes(b"\x7fELF")
    script.chmod(0o755)
    move_commands(installed, folder)
    assert (folder / "flwr").read_text() == f"#!{VENV}/bin/python\nprint()\n"
    assert os.access(folder / "flwr", os.X_OK)
    assert (folder / "uv").read_bytes() == b"\x7fELF"
    assert not any(installed.iterdir())
