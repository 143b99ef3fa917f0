"""What a clone carries to others: pinned requirements, and the bundle that Flower sends around."""

import io
import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_files

ROOT = Path(__file__).resolve().parents[2]


def test_every_requirement_has_one_exact_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["docs"], *extras["llm"], *extras["dev"]]
    wanted = [requirement for requirement in wanted if not requirement.startswith("fl-app[")]
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            # No local part such as +cpu, which only one index has, and no address of an index.
            pin = re.fullmatch(r"([a-z0-9-]+)==((?:[0-9]+!)?[0-9.]+)( ; .*)?", line)
            name, version = pin.groups()[:2]
            assert pins.setdefault(name, version) == version
    assert {re.match(r"[a-z0-9-]+", requirement)[0] for requirement in wanted} <= pins.keys()


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_flower_bundle_is_the_app_and_its_configuration():
    """Flower leaves out files by name, such as test_*.py and what .gitignore lists."""
    app = [
        *ROOT.glob("fl_app/**/*.py"),
        *ROOT.glob("fl_app/**/*.json"),
        *ROOT.glob("conf/**/*.yaml"),
    ]
    wanted = {path.relative_to(ROOT).as_posix(): path for path in app}
    others = {name: ROOT / name for name in (".gitignore", "pyproject.toml", "LICENSE")}
    strays = {
        ".venv/lib/site.py": b"",
        "outputs/2026-01-31/12-00-00/events.jsonl": b"",
        "multirun/config.yaml": b"",
        "data/index.json": b"",
    }
    content, _ = build_fab_from_files({**wanted, **others, **strays})
    with zipfile.ZipFile(io.BytesIO(content)) as bundle:
        bundled = set(bundle.namelist())
    assert bundled == {*wanted, "pyproject.toml", "LICENSE", ".info/CONTENT"}


def test_every_package_is_in_the_wheel():
    """Setuptools cannot find packages by itself where one lies elsewhere."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = [path.parent.relative_to(ROOT) for path in ROOT.glob("fl_app/**/__init__.py")]
    assert settings["packages"] == sorted([*(".".join(p.parts) for p in found), "fl_app.conf"])
