"""The project's own files, whether this package runs from a clone or is installed.

``files/project`` has the files of the repository's root that are needed elsewhere. In a clone they
are links, and an installed package has copies.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import Version

from fl_app.core.errors import RunError

PACKAGE = Path(__file__).resolve().parents[1]
FILES = Path(__file__).with_name("files") / "project"
RENAMED = {"project.toml": "pyproject.toml"}  # for ruff takes its settings from any of that name
SETUPTOOLS = Version("77")  # as [build-system] in pyproject.toml
IGNORED = shutil.ignore_patterns("__pycache__")


def write_sources(folder: Path) -> None:
    """Write what a wheel is built from, and what ``flwr run`` packs.

    Args:
        folder: a new folder; receives ``pyproject.toml``, ``fl_app``, ``conf`` and so on.
    """
    from fl_app.cli import CONF  # needs Hydra, which devices do not have

    shutil.copytree(PACKAGE, folder / "fl_app", ignore=IGNORED)
    shutil.rmtree(folder / "fl_app" / "conf", ignore_errors=True)  # lies there once installed
    shutil.copytree(CONF, folder / "conf", ignore=IGNORED)
    links = folder / FILES.relative_to(PACKAGE.parent)
    for file in FILES.iterdir():
        name = RENAMED.get(file.name, file.name)
        shutil.copy(file, folder / name)
        # As in a clone: Flower leaves out links, so that a run's app is the same file for file.
        (links / file.name).unlink()
        (links / file.name).symlink_to(Path("../../../..") / name)


@contextmanager
def app_folder() -> Iterator[Path]:
    """Provide the folder of the Flower app: the clone's, or else a temporary one."""
    if (PACKAGE.parent / "pyproject.toml").is_file():
        yield PACKAGE.parent
        return
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "fl-app")
        write_sources(folder)
        yield folder


def build_wheel(folder: Path) -> Path:
    """Build a wheel of this project.

    Args:
        folder: receives the wheel.

    Returns:
        The wheel's path.

    Raises:
        RunError: it cannot be built.
    """
    try:
        isolated = Version(version("setuptools")) < SETUPTOOLS
    except PackageNotFoundError:
        isolated = True  # pip then downloads setuptools
    with tempfile.TemporaryDirectory() as parent:
        sources = Path(parent, "fl-app")
        write_sources(sources)
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
        command += ["--no-deps", "--wheel-dir", str(folder)]
        command += [] if isolated else ["--no-build-isolation", "--no-index"]
        done = subprocess.run([*command, str(sources)], capture_output=True, text=True)
    if done.returncode:
        raise RunError(f"the wheel for the devices cannot be built:\n{done.stderr.strip()}")
    return next(folder.glob("fl_app-*.whl"))
