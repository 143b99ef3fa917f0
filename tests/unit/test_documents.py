"""Links between the documents lead somewhere."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import Quadratic, run, vec

from fl_app.schedule import Buffered

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)\s]+)\)", page.read_text())
    for link in links:
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


def test_the_algorithm_with_more_than_one_vector_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an author's own file, in worker processes; with compression, too."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/algorithms.md").read_text(), re.S)
    (tmp_path / "leaning.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "leaning", raising=False)
    leaning = importlib.import_module("leaning")
    task = Quadratic.scattered(10)
    for settings in ({}, {"top_k": 0.5, "upload_dtype": "float16"}):
        trainer = leaning.LeaningTrainer(task, upload="delta", local_lr=0.1, **settings)
        schedule = Buffered(concurrency=6, buffer_size=3)
        result = run(
            schedule,
            trainer.sender,
            strategy=leaning.Leaning(),
            initial=vec(0, 0, 0),
            num_versions=60,
            workers=1,
        )
        assert result.history.failures == result.history.rejected == 0
        assert np.linalg.norm(result.outcome.params - task.optimum) < 0.2
