"""Code of README, docs/algorithms.md, the notebooks and the examples works as they say."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from helpers import Quadratic, python, status_of
from nbclient import NotebookClient

from fl_app.__main__ import main
from fl_app.client import LocalTrainer
from fl_app.core.types import GlobalModel, Update
from fl_app.devices.compute import UniformRatio
from fl_app.devices.fleet import Fleet
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Schedule
from fl_app.strategy import AsyncStrategy

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ALGORITHMS = (ROOT / "docs" / "algorithms.md").read_text()


def test_readme_is_short():
    assert len(README.split()) <= 500


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_table_is_that_of_the_main_job(tmp_path):
    """On a terminal of 100 columns. Processors differ in last bits, and therefore in scores."""
    command = ["-m", "fl_app", "experiment=quickstart", f"hydra.run.dir={tmp_path}"]
    run = python(*command, env={**os.environ, "COLUMNS": "100"})
    block = re.search(r"^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert block
    titles, names, *rows = block[1].splitlines()[:-1]
    lines = [each.rstrip() for each in run.stdout.splitlines()]
    assert [titles, names] == lines[lines.index(titles) :][:2]
    for row, of_run in zip(rows, lines[lines.index(names) + 1 :], strict=False):
        expected, actual = row.split(), of_run.split()
        assert (expected[0], expected[6:]) == (actual[0], actual[6:])  # cell, staleness and work
        scores = [[float(text.rstrip("%")) for text in each[1:3]] for each in (expected, actual)]
        assert np.allclose(*scores, atol=3)
    assert len(rows) == 7
    logs = {path.parent.name: path.read_text() for path in tmp_path.glob("*/events.jsonl")}
    first = {json.loads(log.partition("\n")[0])["accuracy"] for log in logs.values()}
    assert len(first) == 1  # the same start
    for cell, sign in {"overlap_fedavg": '"beside":true', "eafl": '"kind":"cluster"'}.items():
        assert sign in logs[cell]


def test_the_four_concepts_run_together():
    task = Quadratic.scattered(20)
    names = {
        **{"task": task, "w_0": np.zeros(task.dim, np.float32), "np": np},
        "devices": Fleet(UniformRatio(ratio=5, num_clients=20, seed=0)),
        **{"Schedule": Schedule, "AsyncStrategy": AsyncStrategy, "LocalTrainer": LocalTrainer},
        **{"VirtualClock": VirtualClock, "Inline": Inline, "Engine": Engine, "Stop": Stop},
    }
    concepts = ALGORITHMS.split("## Four concepts")[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", concepts, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        assert len([line for line in block.splitlines() if line]) <= 5
        exec(block, names)
    outcome = names["outcome"]
    assert outcome.stopped == "num_versions"
    distance = np.linalg.norm(outcome.params - task.optimum)
    assert distance < 0.5 * np.linalg.norm(task.optimum)  # more than half of the way from w_0 = 0


def code_block(path, language):
    """The code block that follows the mention of a file."""
    pattern = rf"`{re.escape(path)}`:\n\n```{language}\n(.*?)```"
    block = re.search(pattern, ALGORITHMS, re.DOTALL)
    assert block, f"docs/algorithms.md no longer shows {path}"
    return block[1]


@pytest.fixture
def half_life(monkeypatch, tmp_path):
    """The page's algorithm, as if its file were in the package."""
    source = tmp_path / "half_life.py"
    source.write_text(code_block("fl_app/algorithms/half_life.py", "python"))
    name = "fl_app.algorithms.half_life"
    spec = importlib.util.spec_from_file_location(name, source)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_the_new_algorithm_computes_its_equation(half_life):
    """w = 1, ages 0 and 2, h = 2: 1 + (1/2)(1 * 4 + 1/2 * 4) = 4."""
    one = np.ones(1, np.float32)
    model = GlobalModel(one, version=2)
    updates = [Update(0, 2, 4 * one, "delta", 1, 0.0), Update(1, 0, 4 * one, "delta", 1, 0.0)]
    np.testing.assert_allclose(half_life.HalfLife(half_life=2.0).aggregate(model, updates), [4])


def test_the_new_algorithm_runs_by_its_name(half_life, tmp_path):
    folder = tmp_path / "conf" / "algorithm"
    folder.mkdir(parents=True)
    (folder / "half_life.yaml").write_text(code_block("conf/algorithm/half_life.yaml", "yaml"))
    arguments = ["algorithm=half_life", "num_versions=4", "runtime.workers=0"]
    options = [f"--config-dir={folder.parent}", f"hydra.run.dir={tmp_path}"]
    assert status_of(main, *options, *arguments) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["algorithm"] == "half_life"


# -- notebooks -----------------------------------------------------------------------------------

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def kernel(test):
    """Marks of a notebook's test, which takes less than a minute on two idle cores."""
    warns = pytest.mark.filterwarnings("ignore:.*event loop:DeprecationWarning")
    return pytest.mark.slow(pytest.mark.timeout(300)(warns(test)))


def execute(notebook, folder, monkeypatch):
    """The notebook after its execution in `folder`."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources)
    return client.execute()


@kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_of_the_documentation_runs(path, tmp_path, monkeypatch):
    stored, shorter = (nbformat.read(path, as_version=4) for _ in range(2))
    for cell in shorter.cells:
        cell.source = re.sub(r"max_updates=\d+", "max_updates=100", cell.source)
    fresh = execute(shorter, tmp_path, monkeypatch)
    kinds = [  # the number of progress lines depends on the machine
        [{output.output_type for output in cell.get("outputs", [])} for cell in notebook.cells]
        for notebook in (stored, fresh)
    ]
    assert kinds[0] == kinds[1]


# -- examples ------------------------------------------------------------------------------------

EXAMPLE = ROOT / "examples" / "lora.py"
WHOLE, ADAPTERS = 344_838, 8_454  # parameters that are trained
BASE = 344_256  # parameters of the transformer without its head


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_adapters_send_a_fortieth(tmp_path):
    for package in ("peft", "transformers"):
        pytest.importorskip(package)
    short = ("num_versions=2", "algorithm.client.local_steps=1")
    run = python(EXAMPLE, *short, "runtime.workers=2", cwd=tmp_path)
    assert "Adapters send 41 times fewer bytes to the server." in run.stdout

    def read_run(name):
        folder = tmp_path / "outputs" / "lora" / name
        with np.load(folder / "model.npz") as file:
            return json.loads((folder / "summary.json").read_text()), dict(file)

    for name, size in (("everything", WHOLE), ("adapters", ADAPTERS)):
        summary, arrays = read_run(name)
        assert summary["bytes_up"] == 4 * size * summary["client_updates"]
        assert summary["failures"] == 0
        assert sum(array.size for array in arrays.values()) >= BASE
        assert 0 < summary["final_accuracy"] < 1
    whole, adapters = read_run("everything")[0], read_run("adapters")[0]
    assert whole["virtual_seconds"] > 5 * adapters["virtual_seconds"]


RUN = """
import sys
from fake_grid import FakeGrid, finish
from flwr.app import Context, RecordDict
import numpy_client

numpy_client.server_app(
    FakeGrid(numpy_client.client_app, numpy_client.NUM_CLIENTS), Context(1, 0, {}, RecordDict(), {})
)
finish()
assert "torch" not in sys.modules
"""


def test_it_learns_digits_without_torch():
    paths = (str(ROOT / "examples"), str(ROOT / "tests"))
    code = f"import sys; sys.path[:0] = {paths!r}\n{RUN}"
    (accuracy,) = re.findall(r"accuracy: (\S+)", python("-c", code).stdout)
    assert float(accuracy) > 0.8
