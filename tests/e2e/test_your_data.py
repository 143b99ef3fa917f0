"""The user's own data: code of docs/your-data.md, README and docs/api/index.md; schemas."""

import json
import re
import shlex
import warnings
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
from helpers import python, status_of
from omegaconf import OmegaConf
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

import fl_app
from fl_app import schema as schema_command
from fl_app.__main__ import main
from fl_app.tasks.encoding import read_schema
from fl_app.tasks.vision import torchvision

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/your-data.md").read_text()
HERE = PAGE.split("## Three real devices")[0]  # tests/e2e/test_kit_federation.py has those


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The current folder, with the files that the page names."""
    torchvision()  # the page imports it, which fails if its operators are for CUDA
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    table = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 2, 3, -1]]
    table = table.rename(columns={"target": "tumour"})
    table["tumour"] = np.where(table["tumour"], "benign", "malignant")
    table["site"], table["stage"] = 7, rng.choice(["early", "late"], len(table))
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


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("code", blocks(HERE, "python"), ids=lambda code: code.split("\n")[0])
def test_python(code, files, capsys):
    has_class = "class " in code
    assert has_class or len([line for line in code.splitlines() if line]) <= 10
    exec(code.replace("max_updates=500", "max_updates=20"), {})
    output = capsys.readouterr().out
    for cell in ("fedbuff", "mine") if has_class else ("fedavg", "fedasync", "fedbuff"):
        assert re.search(rf"^{cell} ", output, re.MULTILINE), output


@pytest.fixture
def run_command(capsys):
    """The output of a command of the page."""

    def run(command):
        arguments = shlex.split(command.replace("\\\n", ""))
        assert arguments[:3] == ["python", "-m", "fl_app"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pyarrow, by flwr-datasets
            assert status_of(main, *arguments[3:], "max_updates=20") == 0
        return capsys.readouterr().out

    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command", blocks(HERE, "sh"), ids=lambda text: re.findall(r"task=\w+", text)[0]
)
def test_command(command, files, run_command):
    output = run_command(command)
    (cells,) = re.findall(r"experiment.only=\[(.*)\]", command)
    for cell in cells.split(","):
        assert re.search(rf"^{cell} ", output, re.MULTILINE), output
    assert list(files.glob("outputs/*/*/report.html"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_users_model_and_loss(files, run_command, monkeypatch):
    (code,) = blocks(PAGE, "py")
    (files / "my_model.py").write_text(code)
    monkeypatch.syspath_prepend(files)
    (keys,) = re.findall(r"The words are `(.*)`\.", PAGE)
    assert keys == "task.model=my_model:make task.loss=my_model:loss"
    run_command(
        f"python -m fl_app task=csv task.path=patients.csv task.target=tumour {keys} num_clients=9"
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_readme_and_the_first_page_of_the_api(files, run_command):
    readme = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^python -m fl_app .*\\\n.*hospital", readme, re.MULTILINE)
    assert re.search(r"All \d+ cells are done", run_command(command))
    code = blocks((ROOT / "docs/api/index.md").read_text(), "python")[0]
    x, y = load_digits(return_X_y=True)
    names = ("x_train", "x_test", "y_train", "y_test")
    arrays = dict(zip(names, train_test_split(x / 16, y), strict=True))
    namespace = {"make_model": "mlp", **arrays}
    shorter = code.replace("versions=200", "versions=20").replace(
        "seeds=[0,", '"num_versions=5", seeds=[0,'
    )
    exec(shorter, namespace)
    assert namespace["result"].summary["stopped"] == "num_versions"
    assert [*namespace["table"].table.index] == ["fedbuff", "fedasync"]


# -- schemas -------------------------------------------------------------------------------------

CLIENTS, ROWS = 12, 120
SMALL = [
    *(f"num_clients={CLIENTS}", "num_versions=6", "eval_every=3"),
    *("algorithm.client.batch_size=8", "runtime.workers=0"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FL_APP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own_table(folder):
    """Write a table whose owners have 10 rows each; return the overrides of its task."""
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, ROWS)) * [[10.0], [0.1]]
    city = rng.choice(["Bern", "Rome"], ROWS)
    bought = np.where(first / 10 + (city == "Rome") > 0.5, "yes", "no")
    lines = ["first,second,city,bought,price,user"]
    for row in range(ROWS):
        values = (first[row], second[row], city[row], bought[row], 1e5 + 1e4 * first[row])
        lines.append(",".join(map(str, (*values, f"user{row % CLIENTS}"))))
    (folder / "table.csv").write_text("\n".join(lines))
    return [
        *("task=csv", f"task.path={folder}/table.csv", "task.target=bought"),
        *("task.ignore=[price]", "task.client=user"),
    ]


def own_arrays(folder):
    """Write two classes of points with owners; return the overrides of their task."""
    rng = np.random.default_rng(0)
    labels = np.arange(ROWS) % 2
    points = rng.standard_normal((ROWS, 3)) + 3 * labels[:, None]
    owners = np.arange(ROWS) // (ROWS // CLIENTS)
    np.savez(folder / "arrays.npz", x_train=points, y_train=labels, client=owners)
    return ["task=arrays", f"task.path={folder}/arrays.npz"]


def status(folder, *overrides):
    return status_of(main, *SMALL, f"hydra.run.dir={folder}", *overrides)


def digest(folder, *overrides):
    """The checksum of a run's final model."""
    assert status(folder, *overrides) == 0
    sha256 = json.loads((folder / "summary.json").read_text())["model_sha256"]
    return sha256


def test_no_run_starts_with_data_that_do_not_fit(folder, capsys):
    overrides = [*own_table(folder), "task.target=bougth"]
    assert status(folder / "run", *overrides) == 2
    error = capsys.readouterr().err
    assert "error: task.target=bougth must be a column of task.path=" in error
    assert "has first, second, city, bought, price, user" in error
    assert not [path for path in (folder / "run").rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_on_a_schema_keeps_its_contents(folder, capsys):
    overrides, schema = own_table(folder), "task.schema=schema.json"
    assert schema_command.main(overrides) == 0
    Path("schema.json").write_text(capsys.readouterr().out)
    assert digest(folder / "run", *overrides, schema) == digest(folder / "plain", *overrides)
    saved = OmegaConf.load(folder / "run" / "config.yaml").task.schema
    assert read_schema(saved) == read_schema("schema.json")
    assert status(folder / "run", *overrides, schema, "resume=auto") == 0  # it is the same run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_model_predicts_in_the_words_and_units_of_its_data(folder, monkeypatch):
    options, table = own_table(folder), pd.read_csv("table.csv").iloc[::-1]
    longer = ["num_versions=60", "algorithm.client.local_lr=0.1"]
    digest(folder / "classes", *options, *longer)
    result = fl_app.Result(folder / "classes")
    assert (result.predict(table) == table["bought"]).mean() > 0.9
    with pytest.warns(UserWarning, match=r"^inputs: first: -?[\d.e+]+ to .* in the schema$"):
        result.predict(table.assign(first=1000 * table["first"]))
    assert (result.predict("table.csv") == result.predict(table)[::-1]).all()
    digest(folder / "numbers", *options, *longer, "task.target=price", "task.ignore=[bought,city]")
    prices = fl_app.Result(folder / "numbers").predict(table)
    assert prices.shape == (ROWS, 1)
    assert abs(prices[:, 0] - table["price"]).mean() < table["price"].std() / 4
    Path("my_loss.py").write_text("def loss(out, y):\n    return (out - y / 1e5).square().mean()\n")
    monkeypatch.syspath_prepend(folder)
    settings = [*options, *longer, "task.target=price", "task.ignore=[bought,city]"]
    digest(folder / "own", *settings, "task.loss=my_loss:loss")
    units = fl_app.Result(folder / "own").predict(table)  # outputs in the loss's units
    assert abs(units[:, 0] - table["price"] / 1e5).mean() < 0.5
    with pytest.raises(ValueError, match=r"inputs=none.csv must be a file: it does not exist"):
        result.predict("none.csv")
    with pytest.raises(ValueError, match="inputs must be a table, as the model was trained on"):
        result.predict(np.zeros((2, 4), np.float32))
    with pytest.raises(
        ValueError, match="inputs must have the columns second: there are first, city"
    ):
        result.predict(table[["first", "city"]])
    with pytest.raises(ValueError, match="inputs has two columns 'first'"):
        result.predict(pd.concat([table, table[["first"]]], axis=1))
    (folder / "classes" / "schema.json").unlink()
    with pytest.raises(ValueError, match=r"has no schema.json: its task is a Python object"):
        result.predict(table)


def test_images_are_predicted_as_the_run_read_them(folder):
    images = np.random.default_rng(0).integers(0, 150, (ROWS, 6, 6, 3)).astype(np.uint8)
    images[1::2] += 100
    np.savez("arrays.npz", x_train=images, y_train=np.arange(ROWS) % 2)
    overrides = ["task=arrays", "task.path=arrays.npz", "task.model=mlp", "partition=iid"]
    digest(folder / "run", *overrides, "num_versions=20", "eval_every=${num_versions}")
    result = fl_app.Result(folder / "run")
    assert (result.predict(images).astype(int) == np.arange(ROWS) % 2).mean() > 0.9
    with pytest.warns(UserWarning, match="none is above 1, and the model was trained on pixels"):
        result.predict(images.transpose(0, 3, 1, 2) / 255)
    with pytest.raises(ValueError, match=r"inputs\[0, 0, 0, 0\] must be a finite float32"):
        result.predict(np.full((1, 3, 6, 6), np.nan))


def test_the_schema_command_prints_and_refuses(folder, capsys):
    overrides = own_arrays(folder)
    assert schema_command.main(overrides) == 0
    assert read_schema(capsys.readouterr().out).input_shape == (3,)
    for arguments, message in (
        (["task=digits"], "error: task=digits has no schema"),
        (["task=arrays"], "error: task.path=null must be the place of the data"),
        (["task=array"], "error: task=array does not exist; did you mean arrays?"),
    ):
        assert schema_command.main(arguments) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_flowers_engine_writes_the_same_files(folder):
    """The path is relative: the nodes are other processes. They also mask uploads and evaluate."""
    overrides = [
        *(word.replace(f"{folder}/", "") for word in own_table(folder)),
        *SMALL[:-1],
        *("algorithm.schedule.concurrency=5", "algorithm.schedule.buffer_size=3"),
        *("client_eval_every=2", "client_eval_fraction=0.2", "devices.ratio=110"),
        *("secure_aggregation=helper", "secure_aggregation.clip_norm=5"),
    ]
    python(ROOT / "tests/in_flower.py", "flower", "3", *overrides, "runtime=flower")
    assert status(Path("inprocess"), *overrides) == 0
    (log,) = {Path(name, "events.jsonl").read_bytes() for name in ("flower", "inprocess")}
    assert b'"clients_evaluate"' in log
    assert b'"weight_rounding"' in log
    flower, inprocess = (
        json.loads(Path(name, "summary.json").read_text()) for name in ("flower", "inprocess")
    )
    assert flower["model_sha256"] == inprocess["model_sha256"]
    assert (flower["num_versions"], flower["failures"], flower["rejected"]) == (6, 0, 0)
