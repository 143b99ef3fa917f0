"""The demo and the fast way, on the oldest and the newest Flower that is allowed.

Each Flower is installed from the package index into a folder of its own, which comes before the
installed one. Without an index these tests are skipped.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.federation,
]

ROOT = Path(__file__).resolve().parents[2]
OWN = re.compile(r"(flwr|uv|certifi)==")  # of Flower's requirements, those that follow its version


@pytest.fixture
def flower(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the oldest or the newest Flower that this project allows."""
    folder = tmp_path / "flower"
    folder.mkdir()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = (
        requirement.specifier
        for requirement in map(Requirement, project["dependencies"])
        if requirement.name == "flwr"
    )
    site = folder / "site"
    done = install(site, "--no-deps", "--resolution", request.param, f"flwr{wanted}")
    if done.returncode:
        pytest.skip(f"NOT TRIED with flwr{wanted}, {request.param}: {done.stderr[-500:]}")
    (found,) = metadata.distributions(name="flwr", path=[str(site)])
    pinned = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    kept = folder / "constraints.txt"
    kept.write_text("".join(line for line in pinned if not OWN.match(line)))
    for constraints in (["--constraints", kept], []):  # a newer Flower may want newer packages
        done = install(site, f"flwr=={found.version}", *constraints)
        if done.returncode == 0:
            return site
    print(f"with the packages that are here, not those of flwr=={found.version}: {done.stderr}")
    return site


def install(site: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    """Install packages into a folder, with the uv that Flower brings along."""
    command = [Path(sys.executable).parent / "uv", "pip", "install", "--quiet"]
    command += ["--python", sys.executable, "--target", site]
    environment = {key: value for key, value in os.environ.items() if key != "UV_CONSTRAINT"}
    words = tuple(map(str, words))
    return subprocess.run([*command, *words], env=environment, capture_output=True, text=True)


def start(command: Sequence[str], flower: Path, folder: Path, warm: str) -> str:
    """What a command prints that uses this Flower."""
    path = os.pathsep.join([str(flower), *sys.path])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "WARM": warm},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("flower", "warm"), [("lowest-direct", "0"), ("highest", "1")], indirect=["flower"]
)
def test_the_demo_runs_on_every_flower_that_is_allowed(
    flower: Path, tmp_path: Path, warm: str
) -> None:
    asked = (
        "import flwr; from importlib.metadata import version as v; print(flwr.__file__, v('flwr'))"
    )
    where, version = start(["-c", asked], flower, tmp_path, warm).split()
    assert Path(where).is_relative_to(flower)
    demo = ["-m", "lab.demo", "--nodes", "2", "--versions", "4"]
    print(f"Flower {version}, WARM={warm}:", start(demo, flower, tmp_path, warm))
    logs = [path.read_text() for path in tmp_path.glob("outputs/*/logs/node-*.log")]
    assert len(logs) == 2
    for log in logs:
        if warm == "0":
            assert "WARM=0: " in log
            assert log.count("train order from version") >= 2
        else:
            assert log.count("carries out orders") == 1
            assert "waits as it always does" not in log
    (server,) = tmp_path.glob("outputs/*/logs/server.log")
    assert "waits as it always does" not in server.read_text()
