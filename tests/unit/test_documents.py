"""Links, modules, files, commands and packages in README, docs/ and CONTRIBUTING.md exist."""

import importlib
import pkgutil
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from helpers import Quadratic, make_config, run, vec

from fl_app.client.build import chain
from fl_app.schedule import Buffered
from lab.docs import reference, signatures

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))

# Files that the reader makes, or that a run or the kit makes.
NOT_HERE = {
    "fl_app/algorithms/half_life.py",
    "fl_app.algorithms.half_life.HalfLife",
    "conf/algorithm/half_life.yaml",
    "conf/algorithm/signed.yaml",
    "fl_app/conf",
}


def anchors(page):
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_files_and_names_of_modules_exist(page):
    text = page.read_text()
    for link in re.findall(r"\]\((?!http)([^)\s]+)\)", text):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link
    places = "fl_app|conf|tests|docs|docker|lab"
    for name in set(re.findall(rf"`((?:{places})/[\w./-]*)`", text)) - NOT_HERE:
        assert (ROOT / name).exists(), name
    if page.name != "upgrading.md":
        for name in set(re.findall(r"\bfl_app(?:\.\w+)+", text)) - NOT_HERE:
            pkgutil.resolve_name(name)


def test_commands_name_options_that_exist():
    """Compose the overrides of all `python -m fl_app` commands."""
    commands = set()
    for page in PAGES:
        for command in re.findall(
            r"^(?:    )?python -m fl_app ((?:[^#\n]*\\\n)*[^#\n]*)", page.read_text(), re.MULTILINE
        ):
            words = command.replace('"', "").replace("\\\n", " ").split()
            overrides = (word for word in words if "=" in word and not word.startswith("hydra"))
            # The first value of a sweep.
            commands.add(tuple(w if re.search(r"[\[{]", w) else w.split(",")[0] for w in overrides))
    assert len(commands) > 50
    for overrides in commands:
        make_config(*overrides)


def test_the_packages_are_those_that_the_linter_knows():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [re.findall(r"\w+", layer) for layer in settings["contracts"][0]["layers"]]
    section = (ROOT / "docs/architecture.md").read_text().split("## Packages")[1]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.MULTILINE)
    assert [re.findall(r"\w+", row) for row in rows] == layers


def test_the_algorithm_with_more_than_one_vector_trains(tmp_path, monkeypatch):
    """From a file outside the package, in worker processes, with and without compression."""
    section = (ROOT / "docs/algorithms.md").read_text().split("## More than one vector")[1]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "leaning.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "leaning", raising=False)
    leaning = importlib.import_module("leaning")
    task = Quadratic.scattered(10)
    for settings in ({}, {"upload_dtype": "float16"}):
        trainer = leaning.LeaningTrainer(task, upload="delta", local_lr=0.1, **settings)
        schedule = Buffered(concurrency=6, buffer_size=3)
        result = run(
            schedule,
            chain(trainer),
            strategy=leaning.Leaning(),
            initial=vec(0, 0, 0),
            num_versions=60,
            workers=1,
        )
        assert result.history.failures == result.history.rejected == 0
        assert np.linalg.norm(result.outcome.params - task.optimum) < 0.2


# -- the pages of the API --------------------------------------------------------------------------

API_PAGES = sorted((ROOT / "docs/api").glob("*.md"))


@pytest.mark.parametrize("page", API_PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_signatures_of_its_names(page):
    """Readers see the signatures without a build of the site."""
    text = page.read_text()
    assert text == signatures.with_signatures(text), "run `make reference`"


# -- docs/reference.md ----------------------------------------------------------------------------


def test_the_page_equals_the_output_of_make_reference():
    assert reference.PAGE.read_text() == reference.page(), "conf/ has changed: run `make reference`"
