"""The bundle that Flower sends around runs alone: unpacked, without the clone beside it."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from fl_app.field.project import write_sources

TESTS = Path(__file__).resolve().parents[1]
RUN = """
import sys
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict
from fl_app import client_app, server_app

config = {"overrides": sys.argv[1], "output": sys.argv[2]}
server_app.main(FakeGrid(client_app.app, 2), Context(1, 1, {}, RecordDict(), config))
print(server_app.__file__)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # Flower's
]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fab")
    write_sources(folder / "fl-app")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder / "fl-app"))) as file:
        file.extractall(folder / "unpacked")
    return folder / "unpacked"


def run(app: Path, overrides: str, output: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{app}{os.pathsep}{TESTS}"}
    command = [sys.executable, "-c", RUN, overrides, str(output)]
    return subprocess.run(command, cwd=app, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    "overrides",
    [
        "experiment=quickstart experiment.scale=smoke",
        "secure_aggregation=helper secure_aggregation.clip_norm=5 num_versions=2",
    ],
)
def test_the_bundle_runs_alone(app: Path, overrides: str, tmp_path: Path) -> None:
    done = run(app, overrides, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(app / "fl_app" / "server_app.py")
    assert (tmp_path / "run" / "report.html").exists()


def test_an_experiment_that_the_bundle_lacks_is_refused_with_those_that_it_has(
    app: Path, tmp_path: Path
) -> None:
    done = run(app, "experiment=benchmark", tmp_path / "run")
    assert "experiment is one of: quickstart" in done.stderr
