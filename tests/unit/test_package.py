"""Pinned requirements, the bundle that Flower sends, the wheel, and the app on Flower Hub."""

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
from flwr.cli.build import build_fab_from_disk, build_fab_from_files
from flwr.cli.config_utils import load_and_validate
from flwr.cli.utils import collect_files, filter_paths_for_publish
from flwr.supercore.constant import MAX_FILE_BYTES, MAX_FILE_COUNT, MAX_TOTAL_BYTES
from packaging.requirements import Requirement

from fl_app.cli import CONF
from lab.hub import PAGE, write_app

ROOT = Path(__file__).resolve().parents[2]


def test_every_requirement_has_one_exact_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *extras["docs"], *extras["llm"], *extras["dev"]]
    needs = [requirement for requirement in needs if not requirement.startswith("fl-app[")]
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            # No local part such as +cpu, which only one index has, and no address of an index.
            pin = re.fullmatch(r"([a-z0-9-]+)==((?:\d+!)?[0-9.]+(?:\.post\d+)?)( ; .*)?", line)
            name, version = pin.groups()[:2]
            assert pins.setdefault(name, version) == version
    assert {re.match(r"[a-z0-9-]+", requirement)[0] for requirement in needs} <= pins.keys()


@pytest.fixture(scope="module")
def bundle():
    """The bundle that Flower builds from a clone with runs, data and an environment in it."""
    files = {path: ROOT / path for folder in ("fl_app", "conf") for path in files_in(folder)}
    files |= {name: ROOT / name for name in (".gitignore", "pyproject.toml", "LICENSE")}
    strays = (".venv/lib/site.py", "outputs/2026-01-31/events.jsonl", "data/index.json")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        content, _ = build_fab_from_files({**files, **dict.fromkeys(strays, b"")})
    return content


def files_in(folder):
    paths = (ROOT / folder).rglob("*")
    return [p.relative_to(ROOT).as_posix() for p in paths if p.is_file() and not p.is_symlink()]


def test_flower_bundle_holds_the_imports_of_a_run_of_the_app(bundle):
    """Other files are in fab-exclude in pyproject.toml. A run also imports targets of options."""
    assert len(bundle) < 1_550_000
    with zipfile.ZipFile(io.BytesIO(bundle)) as file:
        names = set(file.namelist())
        options = "".join(file.read(name).decode() for name in names if name.startswith("conf/"))
    assert len(names) < 345
    missing = {*files_in("conf")} - names - {"conf/runtime/ray.yaml"}  # no option of the groups
    assert {name.rpartition("/")[0] for name in missing} == {"conf/experiment"}
    assert {name.split("/")[0] for name in names} == {
        *("fl_app", "conf", "pyproject.toml", "LICENSE", ".info")
    }
    assert {
        name for name in files_in("fl_app") if "/tables/" in name and name[-5:] == ".json"
    } <= names
    graph = grimp.build_graph("fl_app", exclude_type_checking_imports=True, cache_dir=None)
    bundled = {n[:-3].removesuffix("/__init__").replace("/", ".") for n in names if n[-3:] == ".py"}
    targets = re.findall(r"(?:\b_target_|/(?:target|keys)@\w+): (fl_app[.\w]+)", options)
    new = {"fl_app.server_app", "fl_app.client_app"}
    new |= {next(p for p in parents(name) if p in graph.modules) for name in targets}
    modules = set()
    while new:
        modules |= new
        imports = {
            i for each in new & bundled for i in graph.find_modules_directly_imported_by(each)
        }
        new = {parent for name in imports | new for parent in parents(name)} - modules
    # A callback of the command line, and imports of runtime=ray.
    assert modules - bundled == {"fl_app.command", "fl_app.cluster", "fl_app.cluster.mailbox"}
    assert bundled <= modules


def parents(name):
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def uv(*arguments, cwd):
    """The messages of uv without network and cache, in a folder with pyproject.toml and uv.toml."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("UV_")}
    command = [sys.executable, "-m", "uv", *arguments, "--offline", "--no-cache"]
    process = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    return process.stderr


def test_flower_installs_nothing_for_a_run_and_uv_everything_in_a_clone(tmp_path):
    """Flower's `uv sync` locks all extras. `uv pip` reads the same file, but must ignore it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    options = ["--python", sys.executable, "--no-install-project", "--inexact", "--dry-run"]
    output = uv("sync", *options, cwd=tmp_path)
    assert "Resolved 1 package" in output, output
    shutil.copy(ROOT / "uv.toml", tmp_path)
    assert "cryptography was not found in the cache" in uv(
        "pip", "compile", "pyproject.toml", cwd=tmp_path
    )


def test_every_package_is_in_the_wheel():
    """Setuptools cannot find packages itself, because one lies elsewhere."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = [path.parent.relative_to(ROOT) for path in ROOT.glob("fl_app/**/__init__.py")]
    assert settings["packages"] == sorted([*(".".join(p.parts) for p in packages), "fl_app.conf"])


# -- Flower Hub -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's
def test_the_published_app_stays_within_flowers_bounds_and_requires_what_a_run_uses(tmp_path):
    folder = tmp_path / "fl-app"
    write_app(folder, "somebody")
    files = {n: Path(str(p)) for n, p in filter_paths_for_publish(collect_files(folder)).items()}
    sizes = [file.stat().st_size for file in files.values()]
    assert len(sizes) <= MAX_FILE_COUNT
    assert max(sizes) <= MAX_FILE_BYTES
    assert sum(sizes) <= MAX_TOTAL_BYTES
    assert all(file.read_text(encoding="utf-8") is not None for file in files.values())
    settings, advice = load_and_validate(folder / "pyproject.toml")
    assert advice == []
    assert 0 < len(settings["project"]["description"]) <= 200
    assert settings["tool"]["flwr"]["app"]["publisher"] == "somebody"
    assert "uv" not in settings["tool"]
    extras = {r.name: r.extras for r in map(Requirement, settings["project"]["dependencies"])}
    assert extras["flwr"] == {"dp", "simulation"}
    assert extras.keys() >= {"torch", "hydra-core", "scikit-learn", "altair"}
    # The Hub's bundle, and the files that `flwr new` unpacks.
    assert build_fab_from_files(files)[0] == build_fab_from_disk(folder)
    assert "@somebody/fl-app" in (folder / "README.md").read_text()


def test_the_page_on_the_hub_names_every_algorithm_task_and_key():
    page = PAGE.read_text()
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    algorithms = [path.stem for path in (CONF / "algorithm").glob("*.yaml")]
    tasks = [path.stem for path in (CONF / "task").glob("*.yaml")]
    assert [name for name in (*algorithms, *tasks, *config) if f"`{name}`" not in page] == []
    assert f"runs {len(algorithms)} algorithms" in page


# -- packages that no run needs -------------------------------------------------------------------

WITHOUT = """
import runpy, sys

LEAVES = sys.argv.pop(1).split(",")

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition("fl_app.")[2].partition(".")[0] in LEAVES:
            raise ModuleNotFoundError(f"{name} is taken off", name=name)

sys.meta_path.insert(0, Refuse())
runpy.run_module("fl_app", run_name="__main__")
"""


def test_a_run_needs_no_leaf(tmp_path):
    overrides = ["num_versions=2", "num_clients=4", "runtime.workers=0"]
    overrides += ["algorithm.client.local_steps=1"]
    code = [sys.executable, "-c", WITHOUT, "cluster,field,node,search,secure", *overrides]
    subprocess.run([*code, f"hydra.run.dir={tmp_path}"], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "model.npz").is_file()
