"""The user's own data: encoded like scikit-learn does, by owner, refused with a remedy."""

import json
import math
import tempfile
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from helpers import make_config
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from PIL import Image
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fl_app.api.settings import plan_of
from fl_app.cli import compose
from fl_app.client.build import build_task
from fl_app.runner.validate import checked_cells
from fl_app.tasks.cache import cache_folder
from fl_app.tasks.encoding import Column, Schema, inline_schema, read_schema
from fl_app.tasks.objective import Classification, Regression
from fl_app.tasks.own_data import _log_once, choose_test
from fl_app.tasks.partition import Iid
from fl_app.tasks.readers import Arrays, Csv, Huggingface, ImageFolder
from fl_app.tasks.table import encode_columns, unusual

ROWS = """age,city,owner,bought
20,Bern,b,no
30,Rome,b,yes
40,Bern,a,no
50,Bern,a,yes
"""
GAPS = """age,city,smoker,weight,owner,bought
20,Bern,True,1,b,no
30,,False,,b,yes
,Rome,,3,a,no
70,Rome,True,NA,a,yes
,Bern,True,5,,yes
"""
X = np.array([[0.0, 5.0], [2.0, 5.0], [0.0, 5.0], [2.0, 5.0]])
Y = np.array([0, 1, 0, 1])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _log_once.cache_clear()


def build(make, path, num_clients=1, seed=0, **keys):
    task = make(path=path, **{"test_share": 0.0, **keys})(seed=seed)
    return task.with_clients(Iid(), num_clients, seed) if len(task.targets) else task


def table(text, *, name="table.csv", **keys):
    if text is not None:
        Path(name).write_text(text, errors="surrogateescape")
    return build(Csv, None if text is None else name, **{"target": "bought", **keys})


def from_arrays(arrays, **keys):
    np.savez("data.npz", **arrays)
    return build(Arrays, "data.npz", **keys)


def folder(path="images", **keys):
    Path(path).mkdir(exist_ok=True)
    return build(ImageFolder, path, **{"size": 4, **keys})


def draw(*names, colour=(255, 0, 0), mode="RGB", **more):
    for name in names:
        path = Path("images", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (8, 8), colour).save(path, **more)


KINDS = {
    "age": (Value("int64"), [20, 30, 40, 50]),
    "city": (Value("string"), ["Bern", "Rome", "Bern", "Bern"]),
    "vector": (List(Value("float32")), [[0.0, 1.0], [2.0, 1.0], [0.0, 1.0], [2.0, 1.0]]),
    "user": (Value("string"), ["b", "b", "a", "a"]),
    "label": (ClassLabel(names=["zebra", "ape"]), [1, 0, 1, 0]),
}


def rows(kinds=KINDS):
    features = Features({name: kind for name, (kind, _) in kinds.items()})
    return Dataset.from_dict({n: values for n, (_, values) in kinds.items()}, features=features)


def hub(data=None, path="set", **keys):
    if not Path(path).exists():
        (rows() if data is None else data).save_to_disk(path)
    return build(Huggingface, path, **{"target": "label", **keys})


# -- tables ---------------------------------------------------------------------------------------


def test_numbers_are_standardised_and_categories_have_an_input_each():
    """The ages have mean 35 and deviation sqrt(125). A column of row numbers is no input."""
    rows = "," + ROWS.replace("\n", "\n7,").removesuffix("7,")
    task = table(rows, ignore=["owner"])
    d = math.sqrt(125)
    expected = [[-15 / d, 1, 0], [-5 / d, 0, 1], [5 / d, 1, 0], [15 / d, 1, 0]]
    np.testing.assert_allclose(task.inputs, expected, rtol=1e-6)
    assert task.targets.tolist() == [0, 1, 0, 1]
    assert (task.name, task.has_test_set, *task.objective.classes) == ("csv-table", 0, "no", "yes")
    one_hot = table(ROWS, inputs="age", categories="age")
    assert one_hot.inputs.tolist() == np.eye(4).tolist()


def test_mean_and_deviation_are_those_of_the_training_rows():
    Path("test.csv").write_text("bought,age,city,more\nyes,35,Rome,1\n")
    task = table(ROWS, ignore=["owner"], test_path="test.csv", test_share=0.25)
    assert (len(task.inputs), task.test_inputs.tolist()) == (4, [[0, 0, 1]])
    Path("test.csv").write_text("bought,zip \nyes,01\n")  # no number, as in training
    task = table("zip ,bought\n01,no\nA1,yes\nA2,no\n", test_path="test.csv")
    assert task.test_inputs.tolist() == [[1, 0, 0]]
    Path("test.csv").write_text('bought,size\nyes,"0,5"\n')
    keys = {"test_path": "test.csv", "categories": "size"}
    assert table('size,bought\n"0,5",no\n"1,5",yes\n', **keys).test_inputs.tolist() == [[1, 0]]
    part = table(ROWS, inputs="age", test_share=0.25)
    assert len(part.inputs) == 3
    assert part.inputs.mean().item() == pytest.approx(0, abs=1e-6)
    assert part.inputs.std(correction=0).item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [([], 3), (["partition=natural", "partition.min_size=2"], 2), (["num_clients=2"], 2)],
)
def test_owners_decide_how_many_clients_there_are(overrides, expected, caplog):
    table(ROWS + "60,Bern,c,no\n")
    keys = ["task=csv", "task.path=table.csv", "task.target=bought", "task.test_share=0"]
    keys += ["task.client=owner", *overrides]
    (cell,) = checked_cells(compose(keys), keys).values()
    assert (cell.num_clients, cell.algorithm.schedule.concurrency) == (expected, expected)
    assert cell.partition._target_.endswith(".Natural")  # the default is Dirichlet
    assert plan_of(keys).config.num_clients == build_task(cell).num_clients == expected
    bad = compose(other := [*keys[:5], "partition=dirichlet"])
    for make in (lambda: checked_cells(bad, other), lambda: plan_of(other)):
        with pytest.raises(ValueError, match=r"^partition must be left out with task.client=ow"):
            make()
    warned = "num_clients=2 is below the 3 owners of the data" in caplog.text
    assert warned == ("num_clients=2" in overrides)
    assert compose([*keys[:4], "num_clients=null"]).num_clients is None
    for kind in ("image_folder", "arrays"):  # only the files show whether there are owners
        keys = [f"task={kind}", "task.path=absent", "num_clients=2"]
        (cell,) = checked_cells(compose(keys), keys).values()
        assert cell.partition._target_.endswith(".Dirichlet")
    many = "x,owner,bought\n" + "".join(f"{i},{i // 30},{i % 2}\n" for i in range(100))
    task = table(many, client="owner", num_clients=4, test_share=0.1)  # the share is per owner
    assert [indices.size for indices in task.partition] == [27, 27, 27, 9]
    by_owner = table(ROWS.replace(",", "\t"), client="owner", num_clients=2, separator=r"\t")
    assert [indices.tolist() for indices in by_owner.partition] == [[2, 3], [0, 1]]


@pytest.mark.parametrize(
    ("values", "keys", "kind", "targets"),
    [
        ("1 0 1", {}, Classification, [1, 0, 1]),
        ("10 9 10", {}, Classification, [1, 0, 1]),  # in the order of numbers
        ("01 1 01", {}, Classification, [0, 1, 0]),  # texts
        ("None milk None", {}, Classification, [0, 1, 0]),  # not a missing value
        ("True False True", {}, Classification, [1, 0, 1]),
        ("1.5 2 4", {}, Regression, [[1.5], [2.0], [4.0]]),
        ("1 2 4", {"kind": "regression"}, Regression, [[1.0], [2.0], [4.0]]),
        ("1.5 2 1.5", {"kind": "classification"}, Classification, [0, 1, 0]),
        ("0,1.5 1,1 0,0", {"target": ["a", "b"]}, Regression, [[0, 1.5], [1, 1], [0, 0]]),
    ],
)
def test_the_kind_follows_from_the_target(values, keys, kind, targets):
    head = ",".join(keys.get("target", ["bought"]))
    lines = "".join(f"{place},{value}\n" for place, value in enumerate(values.split()))
    task = table(f"x,{head}\n{lines}", **keys)
    assert (type(task.objective), task.targets.tolist()) == (kind, targets)
    if isinstance(task.objective, Regression):
        numbers = task.targets.numpy()
        np.testing.assert_allclose(task.objective.mean, numbers.mean(0), rtol=1e-6)
        np.testing.assert_allclose(task.objective.deviation, numbers.std(0), rtol=1e-6)


def test_missing_values_become_those_of_training_rows_and_nodes_use_the_same(caplog):
    """The first four rows are encoded as by scikit-learn's imputers and scaler."""
    lines = GAPS.splitlines(keepends=True)
    keys = {"ignore": ["owner"], "missing": "median"}
    task = table("".join(lines[:5]), **keys)
    numbers = pd.read_csv("table.csv")[["age", "smoker", "weight"]].to_numpy(float)
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(numbers)
    age, smoker, weight = scaled.transform(numbers).T
    city = [[1, 0], [0, 1], [0, 1], [0, 1]]  # Rome is the commonest
    np.testing.assert_allclose(task.inputs, np.c_[age, city, smoker, weight], rtol=1e-5)
    assert [column.fill for column in task.schema.columns] == [30, "Rome", 1, 2]
    schema = task.schema.to_json()
    node = table(lines[0] + lines[4] + ",,,,,no\n", name="node.csv", schema=schema)
    age, smoker, weight = scaled.transform([[np.nan] * 3]).T
    np.testing.assert_allclose(node.inputs[0], task.inputs[3])
    np.testing.assert_allclose(node.inputs[1:], np.c_[age, [[0, 1]], smoker, weight], rtol=1e-5)
    assert read_schema(schema) == task.schema
    assert "missing=median fills 5 of 16 values, of age, city, smoker, weight" in caplog.text
    text = GAPS.replace("bought", "bought,empty").replace("\n", ",\n")
    for settings, message in (
        ({"schema": schema, "missing": "drop"}, "missing=drop must be .*median"),
        (
            {**keys, "client": "owner", "ignore": []},
            r"'owner' .* row 5, .*rows; or, .* task.missing=drop$",
        ),
        ({**keys, "target": "empty"}, r"column 'empty' has no value .*task.missing=drop$"),
    ):
        with pytest.raises(ValueError, match=message):
            table(text, **settings)
    ages = [1, 2, 4, 8, 16, 32, 64, 128]
    text = "".join(f"{age},{'no' if age % 3 == 1 else 'yes'}\n" for age in ages)
    task = table("age,bought\n,no\n" + text, test_share=0.5, missing="median")
    (column,) = task.schema.columns
    codes, gaps = Column("zip", categories=("1", "2"), fill="2"), pd.DataFrame({"zip": [1, None]})
    assert encode_columns(gaps, [codes], "a frame").tolist() == [[1, 0], [0, 1]]
    trained = (task.inputs[:, 0] * column.deviation + column.mean).round().tolist()
    assert column.fill == np.median([age for age in trained if age in ages]) != np.median(ages)


def test_rows_without_a_value_are_left_out_and_counted(caplog):
    keys = {"inputs": ["age", "smoker"], "client": "owner", "missing": "drop"}
    task = table(GAPS, num_clients=None, test_path="table.csv", **keys)
    counts = task.num_clients, len(task.test_targets)  # a test set has no owners
    assert (task.targets.tolist(), *counts) == ([0, 1, 1], 2, 3)
    assert caplog.text.count("task.missing=drop leaves out 2 rows") == 2
    assert len(table(GAPS, schema=task.schema.to_json()).targets) == 3


def test_columns_of_distinct_integers_are_reported_as_likely_identities(caplog):
    caplog.set_level("WARNING")  # independently of earlier tests
    lines = "".join(f"{1000 + 7 * i},{i % 9},{i / 3},{i % 2}\n" for i in range(30))
    keys = {"test_path": "table.csv"}
    for _ in range(2):  # also of a file that was read before
        _log_once.cache_clear()
        table("patient,age,share,bought\n" + lines, **keys)
    message = "in patient, as in an identity: task.ignore=[patient] leaves it out"
    assert caplog.text.count(message) == len(caplog.records) == 2
    table("patient,age,share,bought\n" + lines, **keys, categories="patient")
    table(ROWS, ignore=["owner"])  # too few rows to tell
    assert len(caplog.records) == 2


def test_the_encoding_of_a_table_and_likely_mistakes_are_logged(caplog):
    caplog.set_level("INFO")
    crp = ["0", '"2\n3"', *"3456789", *"-" * 51]
    pairs = [("No", "1.0", "Zürich"), ("no", "1", "Zu\u0308rich")]
    starts = (f"{90 + i // 2} mmHg,P{i // 2},{','.join(pairs[i % 2])},7" for i in range(60))
    codes = (f"0{i % 9},{i % 7},{i % 6}" if i % 20 else "099,-999,999" for i in range(60))
    sound = (f"{i % 5 + 99 * (i == 9)},{i % 20 == 0:d},{'0AB'[i % 3]}{i % 3}" for i in range(60))
    lines = "".join(map("{},{},{},{}\n".format, starts, codes, sound, crp))
    head = "pressure,id,bought,owner,city,site,ward,change,pay,dose,flag,room,crp\n"
    table(head + lines, client="owner", num_clients=2)
    for message in (
        "site is 7 in every row: a device where it differs would spoil the model; task.ignore=",
        "id has 30 texts such as 'P0', each an input: make numbers or fewer texts of them; task.",
        "pay is 999 in 3 rows, far from the others: if it stands for no value, leave the cells e",
        "ward has '099' and is taken for a number: task.categories=[ward] takes its values for",
        "change is -999 in 3 rows, far from the others: if it stands for no value, leave the cell",
        "60 examples, 81 inputs, classes No, no; owners (2), in the order of the clients: 1, 1.0",
        "crp is taken for texts, of which 13% are numbers: if '-' is no value, leave the cell empt",
        "crp has a line break in row 2: a single quote mark joins lines",
        "pressure has 30 texts such as '90 mmHg', each an input: make numbers or fewer texts of",
        "classes differ only in case, accents or zeros: No, no",
        "owners differ only in case, accents or zeros: 1, 1.0",
        "values of city differ only in case, accents or zeros: Zu\u0308rich, Zürich",
    ):
        assert message in caplog.text
    assert len(caplog.records) == 13  # also room's texts; none on dose and flag


def test_targets_in_other_units_and_constant_columns_are_reported():
    moments = {"target_mean": (3000.0,), "target_deviation": (900.0,)}
    columns = Column("smoker", 0.3, 0.45), Column("site", 7.0)  # site is constant there, too
    schema = Schema("regression", (2,), ("cost",), columns=columns, **moments)
    inputs, costs = np.full((21, 2), [-0.3 / 0.45, 0], np.float32), np.linspace(2, 4, 21)[:, None]
    assert unusual(schema, inputs, costs) == [
        "smoker: 0 to 0 here, and 0.3 with the deviation 0.45 in the schema",
        "cost: 2 to 4 here, and 3000 with the deviation 900 in the schema",
    ]
    assert not unusual(schema, inputs[:20], costs[:20] * 1000)


def test_a_file_is_read_again_if_it_or_a_key_changes():
    def entries():
        return len([p for p in cache_folder().iterdir() if p.name.startswith("csv-table-")])

    table("x,bought\n1,no\n2,yes\n")
    build(Csv, "table.csv", target="bought", num_clients=2, model="logistic", seed=3)
    assert entries() == 1
    assert len(table("x,bought\n1,no\n2,yes\n3,yes\n").inputs) == 3
    assert len(build(Csv, "table.csv", target="bought", test_share=0.3).inputs) == 2
    assert entries() == 1  # older entries are removed


def test_a_schema_encodes_other_data_alike():
    """The device has only one class and one city, and an additional column."""
    server = table(ROWS, ignore=["owner"])
    schema = server.schema.to_json()
    task = table("more,city,bought,age\n1,Rome,no,35\n", target=None, schema=schema)
    assert (task.inputs.tolist(), task.targets.tolist()) == ([[0, 0, 1]], [0])
    assert task.schema == server.schema
    assert table(None, schema=schema).model()(torch.zeros(1, 3)).shape == (1, 2)


# -- arrays ---------------------------------------------------------------------------------------


def test_arrays_are_standardised_as_the_training_examples(caplog):
    arrays = {"x_train": X, "y_train": Y, "x_test": [[4.0, 6.0]], "y_test": [1]}
    task = from_arrays({**arrays, "client": ["b", "a", "b", "b"]}, num_clients=2)
    assert task.inputs.tolist() == [[-1, 0], [1, 0], [-1, 0], [1, 0]]
    assert task.test_inputs.tolist() == [[3, 1]]
    assert (task.targets.tolist(), task.name) == ([0, 1, 0, 1], "arrays-data")
    assert [indices.tolist() for indices in task.partition] == [[1], [0, 2, 3]]
    iid = from_arrays(arrays | {"client": [*"baaa"], "X_test": X}, client=False, num_clients=4)
    assert "data.npz has X_test, which nothing reads, beside x_train, " in caplog.text
    assert [indices.size for indices in iid.partition] == [1] * 4
    known = from_arrays({"x_train": [[4.0, 6.0]], "y_train": [1]}, schema=task.schema.to_json())
    assert known.inputs.tolist() == [[3, 1]]
    constant = {"x_train": np.full((999, 1), 0.1), "y_train": np.arange(999) % 25}
    constant = from_arrays(constant | {"x_test": [[0.2]], "y_test": [1]})
    assert constant.test_inputs is not None  # the deviation is 1e-17, and not 0
    assert constant.test_inputs.item() == pytest.approx(0.1)
    assert constant.objective.num_outputs == 25  # integers are classes, however many


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 3, 6, 5), (4, 6, 5, 3)])
def test_bytes_are_images_with_channels_first_or_last(shape):
    images = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    task = from_arrays({"x_train": images, "y_train": Y})
    assert task.inputs.shape == (4, 1 if len(shape) == 3 else 3, 6, 5)
    batch, _ = task.batch(np.array([1]))
    last = images.reshape(4, 6, 5, -1) if shape[1] == 6 else images.transpose(0, 2, 3, 1)
    mean, deviation = last.mean((0, 1, 2)), last.std((0, 1, 2))
    expected = (last[1] - mean) / deviation
    np.testing.assert_allclose(batch[0].permute(1, 2, 0), expected, rtol=1e-4, atol=1e-5)
    assert task.model()(batch).shape == (1, 2)


# -- folders of images ----------------------------------------------------------------------------


def test_a_folder_for_each_class():
    draw("cat/a.png", "cat/b.bmp", colour=(200, 100, 0))
    draw("dog/a.jpg", colour=7, mode="L")
    Path("images/cat/notes.txt").write_text("no image")
    Path("images/.thumbnails").mkdir()
    Path("images/__MACOSX/cat").mkdir(parents=True)  # as in a zip file of macOS
    for name in ("cat", "__MACOSX/cat"):
        Path(f"images/{name}/._a.png").write_bytes(b"no image")
    task = folder()
    assert (task.inputs.shape, task.inputs.dtype) == ((3, 3, 4, 4), torch.uint8)
    assert task.inputs[:, :, 0, 0].tolist() == [[200, 100, 0], [200, 100, 0], [7, 7, 7]]
    assert (task.targets.tolist(), task.schema.outputs) == ([0, 0, 1], ("cat", "dog"))
    assert task.name == "image_folder-images"
    assert folder(channels=1, size=2).inputs[2].flatten().tolist() == [7] * 4
    draw("dog/b.png", "dog/c.png", "cat/c.png")
    split = folder(test_share=0.4)
    assert (len(split.targets), split.test_targets.tolist()) == (4, [0, 1])
    for name in ("a.png", "b.png"):  # behind a link
        draw(f"../elsewhere/{name}")
        if not Path("images/eft").exists():
            Path("images/eft").symlink_to(Path("elsewhere").resolve())
            assert len(folder().targets) == 7
    assert len(folder().targets) == 8


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("TRAIN", "Val")])
def test_a_folder_for_each_client_and_one_for_testing(train, test):
    draw(*(f"{train}/{name}/a.png" for name in ("ann/cat", "ann/dog", "bob/dog")))
    draw(f"{test}/ann/cat/b.png")
    Path(f"images/{train}/bob/cat").mkdir()  # a class without images of one client
    task = folder(num_clients=2)
    assert [task.targets[indices].tolist() for indices in task.partition] == [[0, 1], [1]]
    assert task.test_targets.tolist() == [0]
    assert [indices.size for indices in folder(num_clients=3, client=False).partition] == [1, 1, 1]


def test_a_schema_states_shape_classes_and_scaling_of_images():
    draw("server/cat/a.png", colour=(0, 10, 5))
    draw("server/dog/a.png", colour=(100, 30, 5))
    draw("device/dog/a.png", colour=(50, 20, 5))
    schema = folder("images/server").schema.to_json()
    inputs, _ = folder("images/server").batch(np.array([0, 1]))
    np.testing.assert_allclose(inputs[:, :, 0, 0], [[-1, -1, 0], [1, 1, 0]], atol=1e-6)
    inputs, targets = folder("images/device", schema=schema, size=99).batch(np.array([0]))
    assert targets.tolist() == [1]
    np.testing.assert_allclose(inputs, torch.zeros(1, 3, 4, 4), atol=1e-6)
    draw("device/bird/a.png")
    with pytest.raises(ValueError, match=r"has 'bird' .* none of cat, dog"):
        folder("images/device", schema=schema)


def test_other_modes_and_photos_turned_upright():
    draw("dog/a.png")
    for mode in ("1", "P", "LA", "RGBA", "CMYK", "I;16"):
        draw(f"cat/{mode[0]}.{'tif' if mode == 'CMYK' else 'png'}", mode=mode, colour=None)
    assert folder().inputs.shape == (7, 3, 4, 4)
    exif = Image.Exif()
    exif[0x0112] = 3  # the camera was upside down
    pixels = np.repeat([[255], [0]], 4, axis=0).repeat(8, axis=1).astype(np.uint8)
    Image.fromarray(pixels).save("images/cat/0.png", exif=exif)
    assert folder(channels=1).inputs[0, 0, [0, 3], 0].tolist() == [0, 255]


# -- Hugging Face ---------------------------------------------------------------------------------


def test_columns_of_a_data_set(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", "hub")
    Path("temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", "temporary")
    task = hub(inputs=["age", "city"], client="user", num_clients=2)
    assert not [*Path("temporary").iterdir(), *Path.cwd().glob("hub/*")]
    assert task.inputs[:, 1:].tolist() == [[1, 0], [0, 1], [1, 0], [1, 0]]
    assert (task.objective.classes, task.targets.tolist()) == (("ape", "zebra"), [0, 1, 0, 1])
    assert task.name == "huggingface-set"
    assert [indices.tolist() for indices in task.partition] == [[2, 3], [0, 1]]
    others = hub(ignore=["vector"])
    assert [column.name for column in others.schema.columns] == ["age", "city", "user"]
    arrays = hub(inputs="vector")
    assert arrays.inputs.tolist() == [[-1, 0], [1, 0], [-1, 0], [1, 0]]
    one = rows({name: (kind, values[1:2]) for name, (kind, values) in KINDS.items()})
    device = hub(one, path="device", inputs="vector", schema=arrays.schema.to_json())
    assert (device.inputs.tolist(), device.targets.tolist()) == ([[1, 0]], [1])


def test_parts_and_gaps_of_a_data_set():
    holes = KINDS | {"age": (Value("float64"), [20, None, 40, 50])}
    parts = {"train": rows(holes), "test": rows().select([1])}
    data = DatasetDict({name: part.cast(parts["train"].features) for name, part in parts.items()})
    task = hub(data, inputs="age", missing="drop")
    assert (len(task.targets), task.test_targets.tolist()) == (3, [1])
    owned = hub(data, path="owned", ignore=["age", "city"], client="user", num_clients=2)
    assert owned.test_inputs.tolist() == [[1, 0]]  # of its vector
    medians = hub(inputs="age", missing="median")
    assert (len(medians.targets), medians.schema.columns[0].fill) == (4, 40)
    long = KINDS | {"user": (Value("int64"), [10**17 + 1, 10**17 + 2, None, 10**17 + 1])}
    keys = {"path": "long", "client": "user", "inputs": "age", "num_clients": 2}
    by_owner = hub(rows(long), **keys, missing="drop")
    assert [indices.tolist() for indices in by_owner.partition] == [[0, 2], [1]]
    with pytest.raises(ValueError, match=r"path=one has the splits dev and must have 'train'"):
        hub(DatasetDict(dev=rows()), path="one")


def test_images_of_a_data_set():
    pictures = (datasets.Image(), [Image.new("L", (6, 6), colour) for colour in (0, 200, 100, 9)])
    kinds = {"picture": pictures, "label": KINDS["label"], "user": KINDS["user"]}
    kinds["label"] = (KINDS["label"][0], [0, 1, 0, None])
    keys = {"size": 4, "channels": 1, "client": "user"}
    task = hub(rows(kinds), num_clients=2, missing="drop", **keys)
    assert task.inputs[:, :, 0, 0].tolist() == [[0], [200], [100]]
    assert task.targets.tolist() == [1, 0, 1]
    assert [indices.tolist() for indices in task.partition] == [[2], [0, 1]]
    inputs, _ = task.batch(np.array([2]))
    np.testing.assert_allclose(inputs, torch.zeros(1, 1, 4, 4), atol=1e-6)
    assert [c.name for c in hub(ignore="picture", missing="drop").schema.columns] == ["user"]
    one = rows({name: (kind, values[2:3]) for name, (kind, values) in kinds.items()})
    device = hub(one, path="device", target=None, schema=task.schema.to_json())
    assert (device.inputs.shape, device.targets.tolist()) == ((1, 1, 4, 4), [1])


# -- the test set ---------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.floats(0, 0.99))
def test_the_share_holds_in_every_group_which_keeps_one(sizes, share):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    expected = min(round(share * groups.size), groups.size - len(sizes))
    if share and not expected:
        with pytest.raises(ValueError, match=f"too few for a test set of task.test_share={share}"):
            choose_test(groups, share, "a.csv")
        return
    mask = choose_test(groups, share, "a.csv")
    assert mask.sum() == expected
    counts = np.bincount(groups[mask], minlength=len(sizes))
    assert (counts < sizes).all()
    free = (np.array(sizes) - 1) * expected / max(1, groups.size - len(sizes))
    assert np.abs(counts - free).max() <= 1
    np.testing.assert_array_equal(mask, choose_test(groups, share, "a.csv"))


# -- refusals -------------------------------------------------------------------------------------

SCHEMA = json.dumps({
    "format": 1, "kind": "classification", "input_shape": [3], "outputs": ["no", "yes"],
    "targets": ["bought"],
    "columns": [{"name": "age"}, {"name": "city", "categories": ["Bern", "Rome"]}],
})  # fmt: skip
WITH = {"schema": SCHEMA}
TEST = {"ignore": ["owner"], "test_path": "test.csv"}


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("x,y\n1,a\n", {}, r"task.target=bought must be a column of task.path=.* has x, y"),
        (ROWS, {"client": "user"}, r"task.client=user must be a column .* has age, city"),
        (ROWS, {"inputs": ["age", "age"]}, "task.inputs=age must be each column once"),
        (ROWS, {"inputs": ["age", "bought"]}, "inputs=bought must be another .*: it is the target"),
        (ROWS, {"inputs": "age", "client": "age"}, "inputs=age must be another .* or the owner"),
        (ROWS, {"inputs": "age", "ignore": "age"}, "ignore=age must be another .* or an input"),
        (ROWS, {"ignore": "bought"}, "task.ignore=bought must be another column: it is the target"),
        (ROWS, {"inputs": "age", "categories": "city"}, "categories=city must .*: it is no input"),
        (ROWS, {"ignore": ["age", "city", "owner"]}, "there is nothing to predict from"),
        (ROWS, {"client": "owner", "num_clients": 3}, "num_clients=3 must be at most 2, the own"),
        (
            ROWS, {"target": ["age", "city"], "kind": "classification"},
            "task.kind=classification must be regression with the 2 target columns",
        ),
        ("x,bought\n1,no,2\n", {}, r"must be .* more values than line 1, 'x'..., which must"),
        ("x,bought\n1,no\n2,no\n", {}, "only the class 'no'.*task.schema"),
        ("x,bought\n1,no\n,yes\n", {}, r"'x' has no value .*, the first of 1: .*task.ignore"),
        ("x,bought\n1,no\n2, NA \n", {}, "'bought' has no value .* say task.missing=drop$"),
        ("x,bought\n1,no\nnull ,yes\n", {}, r"'x' has no value .*, NaN or NULL\) in row 2"),
        ("PAR1\0\0\n", {}, "table in UTF-8.*: it is Parquet: write it as CSV"),
        ("\udcd0\udccf\x11\udce0", {}, r"table in UTF-8.*: it is Excel \(.xls\): write it as CSV"),
        ("x,bought\n1,1600000000.5\n2,1600000001\n", {}, "'bought' has .* subtract the mean"),
        ("x,bought\n1,1e39\n2,2e39\n", {"kind": "regression"}, "'bought' has .* 2e.39, too large"),
        ("x,bought\n,no\n,yes\n", {"missing": "drop"}, "has no rows without a gap"),
        ("x,y,bought\n,1,a\n,2,b\n", {"missing": "median"}, "'x' has no value in any training row"),
        (
            "x,bought\n1,no\n2,yes\n3x,yes\n", {},
            r"column 'x' needs finite numbers and has '3x' in row 3: .*task.categories=\[x\]",
        ),
        ("x,bought\n1,0\n2,1\n3,x\n", {}, r"'bought' needs .* as classes \(task.kind=class"),
        ("x,bought\n1,no\n2,yes\n", {"test_share": 0.5}, "2 examples, too few for a test set"),
        (
            "x (1),bought\n" + "".join(f"word{i},{i % 2}\n" for i in range(40)), {},
            r"has 40 different texts in 40 rows, .* bound of 20: .*task.ignore=\['x \(1\)'\]",
        ),
        (
            "x,bought\n" + "".join(f"{i},word{i}\n" for i in range(40)), {},
            "'bought' has 40 different values in 40 rows.*task.kind=classification",
        ),
        ("age,city,bought\n1,Oslo,no\n", WITH, "'city' has 'Oslo' in row 1.* with a schema"),
        ("age,city,bought\n1,BERN,no\n", WITH, "'city' has 'BERN' in row 1.*: write 'Bern'$"),
        ("age,bought\n1,no\n", WITH, "a column of task.schema=city must be a column of task.path"),
        (ROWS, {"target": "city", **WITH}, "task.target=city must be bought as in task.schema"),
        (ROWS, {"kind": "regression", **WITH}, "task.kind=regression must be class.* as in"),
        (ROWS, {"ignore": ["city"], **WITH}, "task.ignore=city must be as in task.schema, or left"),
        (ROWS, {"categories": "age", **WITH}, "task.categories=age must be as in task.schema"),
        (ROWS, TEST | {"age,city,bought\n1,Bern,no\n2,Oslo,no\n": 0}, "'city' has 'Oslo' in row 2"),
        ("x,x ,bought\n1,1,no\n", {}, "has two columns 'x'"),
        (ROWS, {"client": "bought"}, "task.client=bought must be another column: it is the target"),
        (ROWS.replace(",", ";"), {}, "its first line is 'age;.*: give task.separator=semicolon$"),
        (ROWS.replace(",", ";"), WITH, r"first line is 'age;.*: write ',' instead of ';'$"),
        ("sep=;\n" + ROWS.replace(",", ";"), {}, "line 1 is 'sep=;', which .*: remove it"),
        (
            'x,bought\n"3,14",no\n2,yes\n', {},
            r"'x' has '3,14', whose comma .*decimal=','.*task.categories=\[x\]",
        ),
        ('x,bought\n1,"0,5"\n2,"1,5"\n', {}, r"'bought' has '0,5', whose comma .*thousands=','\)$"),
        ('x,bought\n"1,200,000",0\n"1,200",1\n', {}, "'x' has '1,200,000', whose comma makes"),
        ('x,bought\n-,0\n"1.200,5",1\n', {}, "'x' has '1.200,5', whose comma makes"),
        (ROWS, {"separator": ";;"}, "task.separator=;; must be one character, tab or semicolon"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused(text, keys, message):
    for test in [key for key in keys if "\n" in key]:
        Path("test.csv").write_text(test)
    with pytest.raises(ValueError, match=message):
        table(text, **{key: value for key, value in keys.items() if "\n" not in key})


def test_a_test_set_without_data_is_refused():
    with pytest.raises(ValueError, match="must be null without task"):
        Csv(test_path="a.csv", schema=SCHEMA)


ARRAYS = {"x_train": X, "y_train": Y}


@pytest.mark.parametrize(
    ("arrays", "keys", "message"),
    [
        ({"x_train": X}, {}, "has no y_train, only x_train"),
        ({**ARRAYS, "x_test": X}, {}, "has no y_test"),
        ({**ARRAYS, "client": ["b", "a", "", "b"]}, {}, r"client\[2\] is an empty text: nobody"),
        ({"x_train": X, "y_train": Y[:3]}, {}, r"npz: x_train has .* and y_train \(3,\): each"),
        ({**ARRAYS, "x_test": X[:, :1], "y_test": Y}, {}, r"of shape \(1,\), and .* state \(2,\)"),
        ({"x_train": X, "y_train": np.array([None, 1, 2, 3])}, {}, "objects are not read"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(arrays, keys, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(arrays, **keys)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "must hold a folder for each class"),
        (["cat/a.png"], "only the class 'cat'"),
        (["cat/a.png", "ann/dog/a.png"], r"must hold .*, and .*cat has no folders in it"),
        (["train/a.png"], "only the class 'train'"),
        (
            ["train/cat/a.png", "dev/cat/a.png"],
            "of train and test, .*: it holds dev, train; rename",
        ),
    ],
)
def test_other_layouts_are_refused(names, message):
    draw(*names)
    with pytest.raises(ValueError, match=message):
        folder()


def test_the_error_of_an_unreadable_image_names_it():
    draw("cat/a.png", "dog/a.png")
    Path("images/dog/b.png").write_bytes(b"\x89PNG\r\n\x1a\n cut short")
    with pytest.raises(ValueError, match=r"dog/b\.png must be an image that can be read: "):
        folder()


ONE = {"label": (KINDS["label"][0], [0, 1])}


@pytest.mark.parametrize(
    ("data", "keys", "message"),
    [
        (rows(), {"target": "labl"}, r"task.target=labl must be a column .* has age, city, vector"),
        (
            rows({"picture": (datasets.Image(), [None] * 2), **ONE}), {"inputs": "pictures"},
            "task.inputs=pictures must be a column .* which has picture, label: it",
        ),
        (
            rows({"x": (datasets.Image(), [Image.new("L", (2, 2)), None]), **ONE}), {},
            "train, row 2 has no image: leave it out",
        ),
        (
            rows({"x": ({"a": Value("int64")}, [{"a": 1}, {"a": 2}]), **ONE}), {},
            "train: x has .* where numbers are needed",
        ),
        (
            rows({"x": (datasets.Image(), [Image.new("L", (2, 2))] * 2), "age": KINDS["age"], **ONE}
                 | {"age": (Value("int64"), [1, 2])}),
            {"inputs": ["x", "age"]}, r"\['x', 'age'\] must be one column .*task.ignore=\[x\]",
        ),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused(data, keys, message):
    with pytest.raises(ValueError, match=message):
        hub(data, **keys)


def test_places_without_data_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"task.path=no/such is no folder here") as caught:
        build(Huggingface, "no/such", subset="small")
    assert "save_to_disk(DIR) of `datasets` puts it into a folder, for task.path=DIR" in str(
        caught.value
    )
    with pytest.raises(ValueError, match=r"task.path=./none must be a folder: it does not exist"):
        build(Huggingface, "./none")
    Path("empty").mkdir()
    with pytest.raises(ValueError, match=r"task.path=.*empty must be a folder that save_to_disk"):
        build(Huggingface, "empty")
    with pytest.raises(ValueError, match=r"task.path=empty must be a file: it is something else"):
        build(Csv, "empty")


# -- schemas ---------------------------------------------------------------------------------------

TABLE = Schema(
    kind="classification",
    input_shape=(3,),
    outputs=("no", "yes"),
    targets=("bought",),
    columns=(Column("age", 40.5, 12.25), Column("city", categories=("Bern", "${oc.env:HOME}"))),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format=2 must be 1"),
        ({"kind": "ranking"}, "kind=ranking must be one of classification, regression"),
        ({"outputs": ["no", "no"]}, "2 or more distinct names"),
        ({"outputs": [0, 1]}, "2 or more distinct names"),
        ({"input_shape": [4]}, r"input_shape=\[4\] must be \[3\], its columns"),
        ({"columns": [{"name": "age", "mean": 1.0, "deviation": 0.0}]}, "the second above 0"),
        ({"columns": [{"name": "city", "categories": ["a", "a"]}]}, "'city'=.* distinct"),
        ({"columns": [{"mean": 1.0}]}, "missing .* 'name'"),
        ({"mean": [float("nan")]}, "must be finite numbers"),
        ({"mean": [1.0], "deviation": [0.0]}, "deviation=.* must be finite numbers above 0"),
        ({"headings": []}, "unexpected keyword argument 'headings'"),
    ],
)
def test_a_bad_schema_is_refused(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_schema(json.dumps({**json.loads(TABLE.to_json()), **change}))
    assert "task.schema must be a schema as `python -m fl_app.schema" in str(caught.value)


@pytest.mark.parametrize("make", [Arrays, Csv, ImageFolder])
def test_a_schema_of_another_form_is_refused(make):
    image = Schema("classification", (3, 4, 4), ("cat", "dog"), mean=(0,) * 3, deviation=(1,) * 3)
    other = image if make is Csv else TABLE
    with pytest.raises(ValueError, match=f"task.schema=... must be a schema of task={make.name}:"):
        make(schema=other.to_json())


@pytest.mark.parametrize(
    ("contents", "message"), [(None, "No such file"), ("{", "Expecting"), ("[]", "a mapping")]
)
def test_the_error_of_a_bad_file_names_it(contents, message, tmp_path):
    path = tmp_path / "schema.json"
    if contents is not None:
        path.write_text(contents)
    with pytest.raises(ValueError, match=message) as caught:
        read_schema(str(path))
    assert f"task.schema={path} must be" in str(caught.value)


def test_nodes_get_the_contents_and_the_users_configuration_stays(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(TABLE.to_json())
    config = make_config("task=digits")
    assert inline_schema(config) is config
    OmegaConf.set_struct(config, False)
    config.task.schema = str(path)
    inline = OmegaConf.create(OmegaConf.to_yaml(inline_schema(config), resolve=True))
    assert config.task.schema == str(path)
    assert inline_schema(inline) is inline
    assert read_schema(inline.task.schema) == TABLE
