"""From four kinds of data to a comparison of three algorithms, in at most ten lines each."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_wine

import fl_app

COMPARE = """
algorithms = {name: f"algorithm={name}" for name in ("fedavg", "fedasync", "fedbuff")}
comparison = fl_app.compare(algorithms, "num_versions=null", "max_updates=30", task=task)
"""

ARRAY = """
import fl_app
from sklearn.datasets import load_digits
x, y = load_digits(return_X_y=True)
model = lambda shape, classes: nn.Linear(shape[0], classes)
task = fl_app.Task.from_arrays(x[:1500] / 16, y[:1500], x[1500:] / 16, y[1500:], model=model)
"""

TABLE = """
import fl_app, pandas
table = pandas.read_csv("wine.csv").sample(frac=1, random_state=0)
x, y = table.drop(columns=["target", "owner"]), table["target"]
x = (x - x.mean()) / x.std()
model = lambda shape, classes: nn.Linear(shape[0], classes)
task = fl_app.Task.from_arrays(x, y, x, y, model=model, clients=table["owner"])
"""

IMAGES = """
import fl_app, torchvision
from torchvision.transforms import ToTensor
images = torchvision.datasets.ImageFolder("images", ToTensor())
model = lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(192, classes))
task = fl_app.Task.from_datasets(images, images, model=model, clients="iid", num_clients=5)
"""

HUGGING_FACE = """
import fl_app, datasets
data = datasets.load_from_disk("animals").train_test_split(0.2, seed=0)
model = lambda shape, classes: nn.Linear(shape[0], classes)
task = fl_app.Task.from_huggingface(
    data, inputs="pixels", target="kind", model=model, clients="camera")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table, a folder of images and a data set of Hugging Face, in the current folder."""
    rng = np.random.default_rng(0)
    table = load_wine(as_frame=True).frame
    table.assign(owner=rng.integers(0, 8, len(table))).to_csv(tmp_path / "wine.csv", index=False)
    for kind, shade in (("dark", 40), ("light", 200)):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(shade, shade + 40, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / kind / f"{number}.png")
    kinds = rng.integers(0, 3, 120)
    columns: dict[str, Any] = {
        "pixels": (kinds[:, None] + 0.1 * rng.standard_normal((120, 4))).tolist(),
        "kind": kinds.tolist(),
        "camera": [f"camera {number % 6}" for number in range(120)],
    }
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "animals")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", [ARRAY, TABLE, IMAGES, HUGGING_FACE])
def test_ten_lines_compare_three_algorithms(program: str, folder: Path) -> None:
    lines = [line for line in (program + COMPARE).splitlines() if line]
    assert len(lines) <= 9  # and one for `from torch import nn`
    assert max(map(len, lines)) <= 100
    names: dict[str, Any] = {}
    exec("from torch import nn\n" + "\n".join(lines), names)
    comparison = names["comparison"]
    assert isinstance(comparison, fl_app.Comparison)
    assert sorted(comparison.table.index) == ["fedasync", "fedavg", "fedbuff"]
    assert (comparison.table["client_updates"] == 30).all()
    assert (comparison.table["final_accuracy"] > 0).all()
