"""What is installed beside an app of somebody else's: a wheel, and a clone in editable mode."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = """
import hydra
import fl_app
from fl_app.cli import CONF
with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
    config = hydra.compose("config", overrides=["algorithm=krum", "experiment=quickstart"])
print(fl_app.__file__, CONF, config.algorithm.strategy.inner.num_malicious_nodes)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def pip(python: str | Path, *words: str | Path) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", *words]
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy, since building leaves files in the folder."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("fl_app", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def composed(python: str | Path, cwd: Path, path: Path | None = None) -> list[str]:
    """Where a Python finds package and configuration, and a value of it."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [python, "-c", COMPOSE]
    done = subprocess.run(
        command, cwd=cwd, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def test_a_wheel_holds_its_configuration_and_claims_no_name_but_its_own(
    clone: Path, tmp_path: Path
) -> None:
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    pip(sys.executable, "wheel", *offline, "--wheel-dir", tmp_path, clone)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"fl_app"}
    for folder, pattern, below in (("conf", "*.yaml", "fl_app/conf"), ("fl_app", "*", "fl_app")):
        for source in (ROOT / folder).rglob(pattern):
            if source.is_file() and "__pycache__" not in source.parts:
                copy = site / below / source.relative_to(ROOT / folder)
                assert copy.read_bytes() == source.read_bytes()
    found = composed(sys.executable, tmp_path, site)
    assert found == [str(site / "fl_app/__init__.py"), str(site / "fl_app/conf"), "2"]


def test_a_clone_can_be_installed_in_editable_mode(clone: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    # What is installed here is seen there, but after what is installed there.
    here = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    there = next((tmp_path / "venv").rglob("site-packages"))
    (there / "zzz.pth").write_text(f"{here}\n")
    pip(python, "install", "--no-deps", "--no-build-isolation", "--no-index", "--editable", clone)
    found = composed(python, tmp_path)
    assert found == [str(clone / "fl_app/__init__.py"), str(clone / "conf"), "2"]
