"""A real node takes a signed release from its server, and goes back from one that does not work."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit_processes import ask, logged, processes, start, wait_for

from fl_app.field.kit import WHEEL
from fl_app.field.loopback import free_ports
from fl_app.field.release import FOLDER, write_release
from fl_app.field.supervise import end
from fl_app.field.versions import Versions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.federation]

RUN = [
    *("algorithm=fedbuff", "task=digits", "partition=iid", "runtime=deployment", "num_clients=1"),
    *("algorithm.schedule.concurrency=1", "algorithm.schedule.buffer_size=1", "deadline=120"),
    *("checkpoint_every=10", "num_versions=100000", "eval_every=1000", "tensorboard=false"),
]
COMMANDS = Path(sys.executable).parent
# No executor comes into being, and so no ClientApp: an order would wait for ever.
BREAKS = ("fl_app/node/forks.py", "def rename(", "def rename(*_): raise SystemExit\ndef _rename(")


def environment(folder: Path, wheel: Path) -> Path:
    """An environment with a wheel of this project, which finds all else in that of the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "all_else.pth").write_text(sysconfig.get_paths()["purelib"])
    for name in ("flower-superexec", "flower-supernode", "flwr-clientapp"):
        _, _, script = (COMMANDS / name).read_text().partition("\n")
        (folder / "bin" / name).write_text(f"#!{folder}/bin/python\n{script}")
        (folder / "bin" / name).chmod(0o755)
    (folder / "bin" / "uv").symlink_to(COMMANDS / "uv")
    install = [COMMANDS / "uv", "pip", "install", "--python", folder / "bin" / "python"]
    subprocess.run([*install, "--quiet", "--no-deps", "--offline", wheel], check=True)
    return folder


def changed(wheel: Path, version: str, file: str, old: str, new: str) -> Path:
    """A wheel of another version, with a change in one of its files."""
    was = wheel.name.split("-")[1]
    target = wheel.with_name(wheel.name.replace(was, version))
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w") as copy:
        for entry in source.namelist():
            content = source.read(entry)
            if entry == file:
                assert old.encode() in content
                content = content.replace(old.encode(), new.encode())
            if ".dist-info/" in entry:
                content = content.replace(
                    f"Version: {was}".encode(), f"Version: {version}".encode()
                )
                content = content.replace(
                    f"-{was}.dist-info".encode(), f"-{version}.dist-info".encode()
                )
                entry = entry.replace(f"-{was}.dist-info", f"-{version}.dist-info")
            copy.writestr(entry, content)
    return target


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A kit, whose processes are gone afterwards."""
    folder = tmp_path / "out"
    port, node_port = free_ports(2)
    made = ask("init", "--nodes", 1, "--host", "localhost", "--port", port, folder)
    assert made.returncode == 0, made.stderr
    settings = folder / "node-0" / "node.env"
    text = settings.read_text().replace("9094", str(node_port))
    often = 'UPDATE_EVERY="3"\nUPDATE_TRIAL="40"'
    settings.write_text(re.sub('UPDATE_EVERY="[0-9]+"', often, text))
    yield folder
    wait_for(lambda: not processes(folder), "all processes are gone")


def test_a_node_is_updated_and_goes_back(out: Path, tmp_path: Path) -> None:
    server, node, run = out / "server", out / "node-0", tmp_path / "run"
    versions = Versions(node)
    (wheel,) = node.glob(WHEEL)
    base = environment(tmp_path / "base", wheel)
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with (tmp_path / "node.log").open("wb") as log:
        keeper = subprocess.Popen(
            [base / "bin" / "python", "-m", "fl_app.field", "keep", node],
            env=alone, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    supervisor = start(tmp_path / "run.log", "run", "--keep", "--output", run, server, *RUN)

    def told() -> str:
        """What the node has told the server of its updates."""
        try:
            (about,) = json.loads((server / "nodes.json").read_text()).values()
        except (OSError, ValueError):
            return ""
        return str(about["update"])

    def used() -> set[str]:
        """The environments in which SuperNodes run."""
        found = processes(node, "-m fl_app.field.supernode")
        texts = [Path(f"/proc/{pid}/environ").read_text() for pid in found]
        return {text.partition("\0PATH=")[2].partition("/bin:")[0] for text in texts}

    def more(count: int) -> Callable[[], bool]:
        before = logged(run, "arrival")
        return lambda: logged(run, "arrival") >= before + count

    try:
        wait_for(lambda: logged(run, "arrival") > 2, "updates arrive")
        updated = ask("update", out)
        assert updated.returncode == 0, updated.stderr
        (found,) = re.findall(r"release (\d+), signed", updated.stdout)
        number = int(found)
        wait_for(lambda: told() == found, "the release carries out an order", 200)
        wait_for(more(3), "updates arrive from the new environment")
        assert used() == {str(versions.environment(number))}

        broken = changed(wheel, "0.1.1", *BREAKS)
        worse = write_release(server / FOLDER, out / "ca", server / "constraints.txt", [broken])
        wait_for(lambda: told() == f"{found}, {worse} failed", "it goes back", 300)
        wait_for(more(3), "updates arrive again")
        assert used() == {str(versions.environment(number))}
        assert versions.record.failed == worse
        doctor = ask("doctor", node)
        assert f"release {worse} was given up" in re.sub(r"\s+", " ", doctor.stdout)
    finally:
        end(supervisor)
        end(keeper)
    text = (tmp_path / "node.log").read_text()
    assert text.count("is on trial until it has carried out an order") == 2
    assert text.count("has carried out an order, and stays") == 1
