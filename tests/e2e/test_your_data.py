"""What docs/your-data.md, README and docs/api/index.md show of your own data runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

from fl_app.tasks.vision import torchvision

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/your-data.md").read_text()
HERE = PAGE.split("## Three real devices")[0]  # tests/e2e/test_own_data.py has those

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with the files that the page names."""
    torchvision()  # the page imports it, which fails where its operators are for CUDA
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    table = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 2, 3, -1]]
    table = table.rename(columns={"target": "tumour"})
    table["tumour"] = np.where(table["tumour"], "benign", "malignant")
    table["stage"] = rng.choice(["early", "late"], len(table))
    table["hospital"] = [f"hospital {i}" for i in rng.permutation(len(table)) % 20]
    table.to_csv("patients.csv", index=False)
    images = rng.integers(0, 150, (480, 20, 20, 3)).astype(np.uint8)
    labels = np.arange(480) % 2
    images[labels == 1, ..., 1] += 100
    pictures = [Image.fromarray(image) for image in images]
    for i, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        folder = tmp_path / "leaves" / ["beech", "oak"][label]
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{i}.png")
    columns = {"image": pictures, "label": labels.tolist()}
    datasets.Dataset.from_dict(columns).train_test_split(0.2).save_to_disk("flowers")
    x, y = rng.random((300, 4)).astype(np.float32), np.arange(300) % 3
    np.savez("digits.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return tmp_path


@pytest.mark.parametrize("code", blocks(HERE, "python"), ids=lambda code: code.split("\n")[0])
def test_python(code: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = "class " in code
    assert own or len([line for line in code.splitlines() if line]) <= 10
    exec(code.replace("max_updates=500", "max_updates=40"), {})
    printed = capsys.readouterr().out
    for cell in ("fedbuff", "mine") if own else ("fedavg", "fedasync", "fedbuff"):
        assert re.search(rf"^{cell} ", printed, re.MULTILINE), printed


def run(command: str) -> str:
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:3] == ["python", "-m", "fl_app"]
    limits = ["max_updates=40", "eval_every=1"]
    done = subprocess.run(
        [sys.executable, *words[1:], *limits], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command", blocks(HERE, "sh"), ids=lambda text: re.findall(r"task=\w+", text)[0]
)
def test_command(command: str, files: Path) -> None:
    printed = run(command)
    (cells,) = re.findall(r"experiment.only=\[(.*)\]", command)
    for cell in cells.split(","):
        assert re.search(rf"^{cell} ", printed, re.MULTILINE), printed
    assert list(files.glob("outputs/*/*/report.html"))


def test_a_model_and_a_loss_of_ones_own(files: Path) -> None:
    (code,) = blocks(PAGE, "py")
    (files / "my_model.py").write_text(code)
    (words,) = re.findall(r"The words are `(.*)`\.", PAGE)
    assert words == "task.model=my_model:make task.loss=my_model:loss"
    run(
        f"python -m fl_app task=csv task.path=patients.csv task.target=tumour {words} num_clients=9"
    )


def test_readme_and_the_first_page_of_the_api(files: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^python -m fl_app .*\\\n.*hospital", readme, re.MULTILINE)
    assert re.search(r"All \d+ cells are done", run(command))
    code = blocks((ROOT / "docs/api/index.md").read_text(), "python")[0]
    x, y = load_digits(return_X_y=True)
    names = ("x_train", "x_test", "y_train", "y_test")
    given = dict(zip(names, train_test_split(x / 16, y), strict=True))
    namespace = {"make_model": "mlp", **given}
    sooner = code.replace("versions=200", "versions=20").replace(
        "seeds=[0,", '"num_versions=5", seeds=[0,'
    )
    exec(sooner, namespace)
    assert namespace["result"].summary["stopped"] == "num_versions"
    assert [*namespace["table"].table.index] == ["fedbuff", "fedasync"]
