"""Whether there is memory for what stays between two orders."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fl_app.node import room

MIB = 2**20
UNLIMITED = 9223372036854771712  # what version 1 of control groups says without a limit


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a machine with 3 GiB of free memory."""
    memory = psutil.virtual_memory()._replace(available=3072 * MIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    return tmp_path


def write(root: Path, path: str, content: object) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{content}\n")


def group(root: Path, folder: str, limit: object, used: int, files: int, version: int = 2) -> None:
    """A control group with a limit in MiB; half of `files` is active."""
    limits = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    names = limits[0 if version == 2 else 1]
    prefix = "" if version == 2 else "total_"
    most = limit * MIB if isinstance(limit, int) and limit < UNLIMITED else limit
    half = files * MIB // 2
    write(root, f"{folder}/{names[0]}", most)
    write(root, f"{folder}/{names[1]}", used * MIB)
    stat = f"anon 5\n{prefix}inactive_file {half}\n{prefix}active_file {half}\nactive_anon 7"
    write(root, f"{folder}/memory.stat", stat)


def test_without_control_groups_the_machine_decides(root: Path) -> None:
    assert room.free(root) == 3072 * MIB


def test_a_container_of_version_2(root: Path) -> None:
    """It sees its own group as the root of all groups."""
    write(root, "proc/self/cgroup", "0::/")
    group(root, "sys/fs/cgroup", 512, used=300, files=80)
    assert room.free(root) == (512 - 300 + 80) * MIB


def test_a_service_of_systemd_within_a_slice(root: Path) -> None:
    """The tightest limit counts, of whichever group."""
    write(root, "proc/self/cgroup", "0::/system.slice/fl-supernode.service")
    group(root, "sys/fs/cgroup/system.slice/fl-supernode.service", "max", used=100, files=0)
    group(root, "sys/fs/cgroup/system.slice", 1000, used=900, files=50)
    assert room.free(root) == 150 * MIB


def test_a_container_of_version_1(root: Path) -> None:
    """Its group is mounted at the top, though its path is the one outside."""
    write(root, "proc/self/cgroup", "5:cpu:/machine/x\n4:memory:/machine/x\n0::/")
    group(root, "sys/fs/cgroup/memory", 512, used=500, files=20, version=1)
    assert room.free(root) == 32 * MIB


def test_a_limit_that_limits_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/user\n0::/")
    group(root, "sys/fs/cgroup/memory/user", UNLIMITED, used=100, files=0, version=1)
    group(root, "sys/fs/cgroup/memory", UNLIMITED, used=9000, files=0, version=1)
    assert room.free(root) == 3072 * MIB


@pytest.mark.parametrize("content", ["not a number", ""])
def test_what_cannot_be_read_limits_nothing(root: Path, content: str) -> None:
    write(root, "proc/self/cgroup", "0::/../outside")
    write(root, "sys/fs/cgroup/memory.max", content)
    assert room.free(root) == 3072 * MIB


@pytest.mark.parametrize(("value", "free", "expected", "why"), [
    ("0", 9999, (False, False), "WARM=0: the node waits as Flower does"),
    ("1", 0, (True, True), "WARM=1: the fast way is on, whatever memory is free"),
    ("auto", 454, (True, True), "454 MiB of memory are free: the fast way is on"),
    ("auto", 453, (True, False), "453 MiB .*, and a training process that stays needs 454"),
])  # fmt: skip
def test_what_a_node_chooses(
    value: str, free: int, expected: object, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "torch_build", lambda: "cpu")
    way = room.choose(value, free * MIB)
    assert (way.fast, way.stays) == expected
    assert re.search(why, way.why)


def test_what_training_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More for what stays than for one order, and for CUDA."""
    found = []
    for build in ("cuda", "cpu"):
        monkeypatch.setattr(room, "torch_build", lambda build=build: build)
        assert 0 < room.least() < room.needed() + room.NODE * MIB
        found.append(room.needed())
    assert found == sorted(found, reverse=True)


def test_what_a_process_holds() -> None:
    holds = "x = bytearray(100 * 2**20); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 100 * MIB < room.held(process.pid) < 120 * MIB
        process.communicate(b"\n")
    assert room.held(process.pid) == 0
    assert room.held() > 10 * MIB  # this process


def test_a_value_without_meaning_is_refused() -> None:
    assert room.setting({}) == room.setting({"WARM": ""}) == "auto"
    assert room.setting({"WARM": "0"}) == "0"
    with pytest.raises(ValueError, match="WARM=yes must be auto, 1 or 0: it decides whether"):
        room.setting({"WARM": "yes"})
