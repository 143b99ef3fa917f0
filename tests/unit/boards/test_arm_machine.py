"""The ARM board's system tells QEMU its processor, wherever a program is started."""

import subprocess
from itertools import pairwise
from pathlib import Path

from boards import bases
from boards.machine import Machine
from boards.podman import Podman


def test_the_processor_is_told_to_services_and_behind_sudo(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc/sudoers.d").mkdir(parents=True)
    (root / "etc/systemd").mkdir()
    for hook in bases.ARM.hooks:
        if "chroot" not in hook:
            subprocess.run(["sh", "-c", hook, "sh", str(root)], check=True)
    told = (root / "etc/systemd/system.conf.d/emulation.conf").read_text()
    assert told == "[Manager]\nDefaultEnvironment=QEMU_CPU=cortex-a72 OMP_NUM_THREADS=1\n"
    kept = (root / "etc/sudoers.d/020_emulation").read_text()
    assert kept == 'Defaults env_keep += "QEMU_CPU OMP_NUM_THREADS"\n'


def test_root_types_from_the_home_of_root(tmp_path: Path) -> None:
    class Answering(Podman):
        asked: tuple[object, ...] = ()

        def ask(self, *words: object, seconds: float = 0.0) -> str:
            self.asked = words
            return "running"

    podman = Answering(tmp_path)
    machine = Machine(podman, "board", "image", user="root")
    machine.type("id", 5.0)
    assert {"--user": "root", "--workdir": "/root"}.items() <= _options(podman.asked).items()
    assert "--env=HOME=/root" in podman.asked


def _options(words: tuple[object, ...]) -> dict[object, object]:
    return dict(pairwise(words))
