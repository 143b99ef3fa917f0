"""What a clone carries to others: pinned requirements, and the bundle that Flower sends around."""

import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
import zipfile
from pathlib import Path

import grimp
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
            pin = re.fullmatch(r"([a-z0-9-]+)==((?:\d+!)?[0-9.]+(?:\.post\d+)?)( ; .*)?", line)
            name, version = pin.groups()[:2]
            assert pins.setdefault(name, version) == version
    assert {re.match(r"[a-z0-9-]+", requirement)[0] for requirement in wanted} <= pins.keys()


@pytest.fixture(scope="module")
def bundle():
    """What Flower makes of a clone in which runs, data and an environment lie."""
    files = {path: ROOT / path for folder in ("fl_app", "conf") for path in below(folder)}
    files |= {name: ROOT / name for name in (".gitignore", "pyproject.toml", "LICENSE")}
    strays = (".venv/lib/site.py", "outputs/2026-01-31/events.jsonl", "data/index.json")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        content, _ = build_fab_from_files({**files, **dict.fromkeys(strays, b"")})
    return content


def below(folder):
    paths = (ROOT / folder).rglob("*")
    return [p.relative_to(ROOT).as_posix() for p in paths if p.is_file() and not p.is_symlink()]


def test_flower_bundle_holds_what_a_run_of_the_app_imports(bundle):
    """The rest is in fab-exclude, in pyproject.toml. A run imports what options name, too."""
    assert len(bundle) < 1_750_000
    with zipfile.ZipFile(io.BytesIO(bundle)) as file:
        names = set(file.namelist())
        options = "".join(file.read(name).decode() for name in names if name.startswith("conf/"))
    assert len(names) < 390
    assert {name.split("/")[0] for name in names} == {
        *("fl_app", "conf", "pyproject.toml", "LICENSE", ".info")
    }
    assert {
        name for name in below("fl_app") if "/tables/" in name and name[-5:] == ".json"
    } <= names
    graph = grimp.build_graph("fl_app", exclude_type_checking_imports=True, cache_dir=None)
    bundled = {n[:-3].removesuffix("/__init__").replace("/", ".") for n in names if n[-3:] == ".py"}
    named = re.findall(r"(?:\b_target_|/(?:target|keys)@\w+): (fl_app[.\w]+)", options)
    new = {"fl_app.server_app", "fl_app.client_app"}
    new |= {next(p for p in parents(name) if p in graph.modules) for name in named}
    found = set()
    while new:
        found |= new
        imported = {
            i for each in new & bundled for i in graph.find_modules_directly_imported_by(each)
        }
        new = {parent for name in imported | new for parent in parents(name)} - found
    # A callback of the command line; what runtime=ray imports, which is left out, too.
    assert found - bundled == {"fl_app.command", "fl_app.runner.on_cluster"}
    assert bundled <= found


def parents(name):
    words = name.split(".")
    return [".".join(words[:length]) for length in range(len(words), 0, -1)]


def uv(*words, cwd):
    """What uv says without network and cache, and where it finds pyproject.toml and uv.toml."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("UV_")}
    command = [sys.executable, "-m", "uv", *words, "--offline", "--no-cache"]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    return done.stderr


def test_flower_installs_nothing_for_a_run_and_uv_everything_in_a_clone(tmp_path):
    """Flower's `uv sync` locks all extras. `uv pip` reads the same file, and must not obey it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    options = ["--python", sys.executable, "--no-install-project", "--inexact", "--dry-run"]
    said = uv("sync", *options, cwd=tmp_path)
    assert "Resolved 1 package" in said, said
    shutil.copy(ROOT / "uv.toml", tmp_path)
    assert "cryptography was not found in the cache" in uv(
        "pip", "compile", "pyproject.toml", cwd=tmp_path
    )


def test_every_package_is_in_the_wheel():
    """Setuptools cannot find packages by itself where one lies elsewhere."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = [path.parent.relative_to(ROOT) for path in ROOT.glob("fl_app/**/__init__.py")]
    assert settings["packages"] == sorted([*(".".join(p.parts) for p in found), "fl_app.conf"])
