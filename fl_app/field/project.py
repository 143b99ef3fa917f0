"""The project's own files, whether this package runs from a clone or is installed.

``files/project`` has the files of the repository's root that are needed elsewhere: in a clone as
links, in an installed package as copies.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from packaging.version import Version

from fl_app.core.errors import RunError
from fl_app.record.provenance import installed_version

PACKAGE = Path(__file__).resolve().parents[1]
FILES = Path(__file__).with_name("files") / "project"
RENAMED = {"project.toml": "pyproject.toml"}  # since ruff reads any file of that name as settings
SETUPTOOLS = Version("77")  # as [build-system] in pyproject.toml
INCLUDE = "fab-include = ["  # in pyproject.toml
# A module of the user's own in an override.
NAMED = re.compile(r"""\+{0,2}task\.(?:model|loss)=['"]?(\w+)[\w.]*:""")
IGNORED = shutil.ignore_patterns("__pycache__")


def write_sources(folder: Path) -> None:
    """Write the sources of a wheel, which ``flwr run`` also packs.

    Args:
        folder: a new folder; receives ``pyproject.toml``, ``fl_app``, ``conf`` and so on.
    """
    from fl_app.cli import CONF  # needs Hydra, which devices do not have

    shutil.copytree(PACKAGE, folder / "fl_app", ignore=IGNORED)
    shutil.rmtree(folder / "fl_app" / "conf", ignore_errors=True)  # of an installed package
    shutil.copytree(CONF, folder / "conf", ignore=IGNORED)
    for file in FILES.iterdir():
        shutil.copy(file, folder / RENAMED.get(file.name, file.name))


@contextmanager
def app_folder(modules: Sequence[Path] = ()) -> Iterator[Path]:
    """Provide the folder of the Flower app: the clone's, or else a temporary one.

    Args:
        modules: the user's files and packages that the app carries to server and nodes.
    """
    if (PACKAGE.parent / "pyproject.toml").is_file() and not modules:
        yield PACKAGE.parent
        return
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "fl-app")
        write_sources(folder)
        include = INCLUDE
        for module in modules:
            pattern = f"/{module.name}"
            if module.is_dir():
                shutil.copytree(module, folder / module.name, ignore=IGNORED)
                pattern += "/**/*.py"
            else:
                shutil.copy(module, folder)
            include += f"{json.dumps(pattern)}, "
        settings = folder / "pyproject.toml"
        settings.write_text(settings.read_text().replace(INCLUDE, include, 1))
        yield folder


def own_modules(overrides: Sequence[str], folders: Sequence[Path]) -> list[Path]:
    """The user's files and packages that overrides name, which the app has to carry.

    Installed modules are left out: nodes have their own.

    Args:
        overrides: as after ``python -m fl_app``.
        folders: to search for them.

    Raises:
        ValueError: a module is neither in the folders nor installed.
    """
    modules = []
    for name in dict.fromkeys(match[1] for word in overrides if (match := NAMED.match(word))):
        places = (folder / form for folder in folders for form in (f"{name}.py", name))
        place = next(filter(Path.exists, places), None)
        if place is not None and name != PACKAGE.name:
            modules.append(place)
        elif find_spec(name) is None:
            raise ValueError(
                f"{name}.py must lie in {' or '.join(map(str, folders))}, or {name} be installed "
                "on the server and all nodes: the run names it, and its app would lack it"
            )
    return modules


def build_wheel(folder: Path) -> Path:
    """Build a wheel of this project.

    Args:
        folder: receives the wheel.

    Returns:
        The wheel's path.

    Raises:
        RunError: it cannot be built.
    """
    # If it is too old or missing, pip downloads another one.
    isolated = Version(installed_version("setuptools") or "0") < SETUPTOOLS
    with tempfile.TemporaryDirectory() as parent:
        sources = Path(parent, "fl-app")
        write_sources(sources)
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
        command += ["--no-deps", "--wheel-dir", str(folder)]
        command += [] if isolated else ["--no-build-isolation", "--no-index"]
        process = subprocess.run([*command, str(sources)], capture_output=True, text=True)
    if process.returncode:
        raise RunError(f"the wheel for the devices cannot be built:\n{process.stderr.strip()}")
    return next(folder.glob("fl_app-*.whl"))
