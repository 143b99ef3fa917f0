"""The folder that is published on Flower Hub, by the bounds of `flwr app publish`."""

import tomllib
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk, build_fab_from_files
from flwr.cli.config_utils import load_and_validate
from flwr.cli.utils import collect_files, filter_paths_for_publish
from flwr.supercore.constant import MAX_FILE_BYTES, MAX_FILE_COUNT, MAX_TOTAL_BYTES
from packaging.requirements import Requirement

from fl_app.cli import CONF
from lab.hub import PAGE, write_app

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's


def test_what_is_published_stays_within_flowers_bounds_and_requires_what_a_run_uses(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "fl-app"
    write_app(folder, "somebody")
    files = {n: Path(str(p)) for n, p in filter_paths_for_publish(collect_files(folder)).items()}
    sizes = [file.stat().st_size for file in files.values()]
    assert len(sizes) <= MAX_FILE_COUNT
    assert max(sizes) <= MAX_FILE_BYTES
    assert sum(sizes) <= MAX_TOTAL_BYTES
    assert all(file.read_text(encoding="utf-8") is not None for file in files.values())
    settings, recommended = load_and_validate(folder / "pyproject.toml")
    assert recommended == []
    assert 0 < len(settings["project"]["description"]) <= 200
    assert settings["tool"]["flwr"]["app"]["publisher"] == "somebody"
    assert "uv" not in settings["tool"]
    wanted = {r.name: r.extras for r in map(Requirement, settings["project"]["dependencies"])}
    assert wanted["flwr"] == {"dp", "simulation"}
    assert wanted.keys() >= {"torch", "hydra-core", "scikit-learn", "altair"}
    # What the Hub makes of it, and what `flwr new` unpacks.
    assert build_fab_from_files(files)[0] == build_fab_from_disk(folder)
    assert "@somebody/fl-app" in (folder / "README.md").read_text()


def test_the_page_on_the_hub_names_every_algorithm_task_and_key() -> None:
    page = PAGE.read_text()
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    algorithms = [path.stem for path in (CONF / "algorithm").glob("*.yaml")]
    tasks = [path.stem for path in (CONF / "task").glob("*.yaml")]
    assert [name for name in (*algorithms, *tasks, *config) if f"`{name}`" not in page] == []
    assert f"runs {len(algorithms)} algorithms" in page
