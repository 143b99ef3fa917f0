"""Runs in a real Jupyter kernel: lines of progress, and the notebooks of the documentation."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SMALL = 300_000  # bytes of all notebooks together, with their pictures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # each takes less than a minute on two quiet cores
    pytest.mark.filterwarnings("ignore:.*event loop:DeprecationWarning"),
]


def executed(notebook: NotebookNode, folder: Path, monkeypatch: pytest.MonkeyPatch) -> NotebookNode:
    """The notebook after its execution in `folder`."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources)
    return client.execute()


def cell_of(*lines: str) -> NotebookNode:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell("\n".join(lines))]
    return notebook


def test_a_run_shows_lines_of_progress_and_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = cell_of(
        "import fl_app",
        "fl_app.run('num_versions=300', 'algorithm.client.local_steps=1', 'runtime.workers=1')",
    )
    *lines, result = executed(notebook, tmp_path, monkeypatch).cells[0].outputs
    assert {each.output_type for each in lines} == {"display_data"}
    assert lines[-1].data["text/plain"].startswith("fedbuff: 300/300 versions")
    assert result.output_type == "execute_result"
    assert '<img src="data:image/png;base64,' in result.data["text/html"]


def test_an_interrupted_kernel_returns_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jupyter interrupts a kernel with SIGINT, which its main thread receives in a run."""
    notebook = cell_of(
        "import os, signal, fl_app",
        "from fl_app.algorithms.fedbuff import FedBuff",
        "class Interrupting(FedBuff):",
        "    def aggregate(self, model, updates):",
        "        if model.version == 3:",
        "            os.kill(os.getpid(), signal.SIGINT)",
        "        return super().aggregate(model, updates)",
        "result = fl_app.run(Interrupting(), 'num_versions=99', 'runtime.workers=1')",
        "result.summary['stopped'], result.summary['num_versions']",
    )
    outputs = executed(notebook, tmp_path, monkeypatch).cells[0].outputs
    assert outputs[-1].data["text/plain"] == "('interrupted', 4)"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_of_the_documentation_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = nbformat.read(path, as_version=4)
    fresh = executed(nbformat.read(path, as_version=4), tmp_path, monkeypatch)
    kinds = [  # how many lines of progress there are depends on the machine
        [{output.output_type for output in cell.get("outputs", [])} for cell in notebook.cells]
        for notebook in (stored, fresh)
    ]
    assert kinds[0] == kinds[1]


def test_the_notebooks_are_small_and_have_pictures() -> None:
    assert len(NOTEBOOKS) == 2
    assert sum(path.stat().st_size for path in NOTEBOOKS) < SMALL
    for path in NOTEBOOKS:
        assert "image/png" in path.read_text(encoding="utf-8")
