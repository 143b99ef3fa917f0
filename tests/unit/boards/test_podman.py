"""What is concluded from Podman's answers and the kernel's files, without Podman."""

from pathlib import Path

import pytest

from boards import podman as module
from boards.machine import Machine
from boards.podman import Container, Podman
from boards.row import Disappointed, Impossible

MOUNTS = """\
overlay / overlay ro,relatime,lowerdir=/x 0 0
proc /proc proc rw,nosuid 0 0
/dev/vda /etc/hosts ext4 rw,relatime 0 0
overlay /opt/fl-app/node overlay rw,relatime,lowerdir=/x 0 0
overlay /tmp overlay rw,relatime,lowerdir=/x 0 0
"""


class Answering(Podman):
    """Answers every command with the same words."""

    def __init__(self, cache: Path, said: str) -> None:
        super().__init__(cache)
        self.said = said
        self.asked: list[tuple[object, ...]] = []

    def ask(self, *words: object, seconds: float = 0.0) -> str:
        self.asked.append(words)
        return self.said


def test_a_build_stops_at_its_target(tmp_path: Path) -> None:
    podman = Answering(tmp_path, "")
    podman.build("image", target="supernode", arguments=["TORCH=cuda"])
    words = podman.asked[0]
    assert words[words.index("--target") + 1] == "supernode"
    assert words[words.index("--build-arg") + 1] == "TORCH=cuda"


def test_networks_of_two_storages_have_two_names(tmp_path: Path) -> None:
    one, other = (Answering(tmp_path / name, "") for name in ("one", "other"))
    assert one.network() != other.network()
    assert one.network() == one.network()


def test_a_machine_that_can_keep_no_images_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Answering):
        def ask(self, *words: object, seconds: float = 0.0) -> str:
            raise Disappointed("operation not permitted")

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(module, "require_programs", lambda *words: None)
    podman = Refusing(tmp_path, "")
    with pytest.raises(Impossible, match="cannot keep images here: operation not permitted"):
        podman.__enter__()


def test_where_a_service_may_write(tmp_path: Path) -> None:
    machine = object.__new__(Machine)
    machine.container = Container(Answering(tmp_path, MOUNTS), "fl-boards-both")
    assert machine.may_write("fl-supernode") == ["/opt/fl-app/node", "/tmp"]


@pytest.mark.parametrize("version", [1, 2])
def test_the_kernels_counts_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    if version == 2:
        files = {"proc/7/cgroup": "0::/box\n", "sys/fs/cgroup/box/memory.peak": "3145728\n"}
        files["sys/fs/cgroup/box/memory.events"] = "low 0\noom_kill 2\n"
    else:
        group = "sys/fs/cgroup/memory/box"
        files = {"proc/7/cgroup": "4:memory:/box\n0::/\n"}
        files[f"{group}/memory.max_usage_in_bytes"] = "3145728\n"
        files[f"{group}/memory.oom_control"] = "oom_kill_disable 0\noom_kill 2\n"
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    container = Container(Answering(tmp_path, "7"), "fl-boards-node-0")
    assert container.peak() == 3.0
    assert container.killed() == 2
    for path in files:
        if "memory." in path:
            (tmp_path / path).unlink()
    with pytest.raises(Disappointed, match="counts no memory for fl-boards-node-0"):
        container.peak()
