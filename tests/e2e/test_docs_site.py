"""The documentation as a site: it builds without a warning, and can be read and searched."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import brightness, measured, needs_browser, opened

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MEASURES = """
    paper: colour(page.body, "backgroundColor"),
    ink: colour(page.querySelector("article p"), "color"),
"""


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build as `make docs` does, in another folder."""
    (recipe,) = re.findall(r"-m mkdocs (build .*)", (ROOT / "Makefile").read_text())
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", *recipe.split(), "--site-dir", str(folder), *options],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    settings = tmp_path / "mkdocs.yml"
    settings.write_text("site_name: one page\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[nowhere](nowhere.md)")
    built = build(tmp_path / "site", "--config-file", str(settings))
    assert built.returncode == 1
    assert "nowhere.md" in built.stderr


def test_every_page_is_built_and_needs_nothing_from_elsewhere(site: Path) -> None:
    sources = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    for source in [*sources, "index.md", "contributing.md", "changelog.md"]:
        text = (site / source).with_suffix(".html").read_text()
        assert "<article" in text
        needed = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?([^\" >]+)", text)
        needed += re.findall(r"<link\b[^>]*\brel=\"?stylesheet\"?[^>]*\bhref=\"?([^\" >]+)", text)
        assert not [link for link in needed if link.startswith(("http", "//"))], source


def test_public_classes_have_a_place_on_a_page(site: Path) -> None:
    for page, names in {
        "strategies": [
            "fl_app.strategy.AsyncStrategy",
            "fl_app.core.algorithm.Algorithm.aggregate",
        ],
        "schedules": ["fl_app.schedule.Schedule.start", "fl_app.schedule.Buffered"],
        "trainers": ["fl_app.client.LocalTrainer"],
        "algorithms": ["fl_app.algorithms.fedbuff.FedBuff", "fl_app.algorithms.moon"],
    }.items():
        text = (site / f"api/{page}.html").read_text()
        assert all(f'id="{name}"' in text or f"id={name}" in text for name in names), page


@needs_browser
def test_search_finds_a_word_in_pages_that_are_opened_as_files(site: Path, tmp_path: Path) -> None:
    text, complaints = opened(f"{(site / 'index.html').as_uri()}?q=SCAFFOLD", tmp_path / "profile")
    assert complaints == []
    assert "matching documents" in text
    assert "api/algorithms.html?h=scaffold" in text


@needs_browser
@pytest.mark.parametrize(
    ("page", "width", "dark"),
    [("index", 390, False), ("api/algorithms", 390, True), ("notebooks/your_data", 1280, False)],
)
def test_page_fits_a_phone_and_the_dark(
    site: Path, tmp_path: Path, page: str, width: int, dark: bool
) -> None:
    found = measured(site / f"{page}.html", tmp_path, width, dark=dark, measures=MEASURES)
    assert found["width"] == width
    assert found["needed"] <= width
    assert (brightness(found["paper"]) < 60) == dark
    assert abs(brightness(found["paper"]) - brightness(found["ink"])) > 120
