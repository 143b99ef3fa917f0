"""Data sets of Hugging Face in folders, and a hub that cannot be reached."""

import tempfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from PIL import Image

from fl_app.tasks.huggingface import huggingface
from fl_app.tasks.objective import Classification, MultiLabel, Regression
from fl_app.tasks.own_task import OwnTask
from fl_app.tasks.partition import Iid

ROWS = {
    "age": [20, 30, 40, 50],
    "city": ["Bern", "Rome", "Bern", "Bern"],
    "vector": [[0.0, 1.0], [2.0, 1.0], [0.0, 1.0], [2.0, 1.0]],
    "user": ["b", "b", "a", "a"],
    "label": [1, 0, 1, 0],
    "tags": [[0, 1], [1], [], [0]],
    "price": [1.5, 2.5, 3.5, 4.5],
}
KINDS = Features(
    {
        "age": Value("int64"),
        "city": Value("string"),
        "vector": List(Value("float32")),
        "user": Value("string"),
        "label": ClassLabel(names=["zebra", "ape"]),
        "tags": List(ClassLabel(names=["big", "old"])),
        "price": Value("float64"),
    }
)
TABLE = Dataset.from_dict(ROWS, features=KINDS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TABLE.save_to_disk(tmp_path / "set")
    return tmp_path / "set"


def build(path: Path | str | None, *, num_clients: int = 1, **keys: Any) -> OwnTask:
    given = {"partition": Iid(), "test_share": 0.0, "target": "label", **keys}
    path = None if path is None else str(path)
    return huggingface(num_clients=num_clients, path=path, **given)


def images(colours: list[int], **more: list[Any]) -> Dataset:
    pictures = [Image.new("L", (6, 6), colour) for colour in colours]
    kinds = {"picture": datasets.Image(), **{key: KINDS[key] for key in more}}
    return Dataset.from_dict({"picture": pictures, **more}, features=Features(kinds))


def test_numbers_texts_and_lists_of_numbers(folder: Path) -> None:
    task = build(folder, inputs=["vector", "city"])
    assert task.inputs.tolist() == [[-1, 0, 1, 0], [1, 0, 0, 1], [-1, 0, 1, 0], [1, 0, 1, 0]]
    assert [column.name for column in task.schema.columns] == ["vector[0]", "vector[1]", "city"]
    assert isinstance(task.objective, Classification)
    assert task.objective.classes == ("ape", "zebra")
    assert task.targets.tolist() == [0, 1, 0, 1]
    assert (task.name, task.source) == ("huggingface-set", "own")


def test_all_columns_without_another_role_are_inputs(folder: Path) -> None:
    task = build(folder, client="user", num_clients=2, ignore=["tags", "price"])
    assert [column.name for column in task.schema.columns] == [
        "age", "city", "vector[0]", "vector[1]",
    ]  # fmt: skip
    assert [own.tolist() for own in task.partition] == [[2, 3], [0, 1]]


def test_other_targets(folder: Path) -> None:
    labels = build(folder, inputs="age", target="tags")
    assert isinstance(labels.objective, MultiLabel)
    assert labels.objective.labels == ("tags.big", "tags.old")
    assert labels.targets.tolist() == [[1, 1], [0, 1], [0, 0], [1, 0]]
    numbers = build(folder, inputs="age", target="price")
    assert isinstance(numbers.objective, Regression)
    assert numbers.targets.tolist() == [[1.5], [2.5], [3.5], [4.5]]


def test_parts_of_a_set(tmp_path: Path) -> None:
    parts = {"train": TABLE, "test": TABLE.select([1]), "extra": TABLE.select([0, 1])}
    DatasetDict(parts).save_to_disk(tmp_path / "set")
    task = build(tmp_path / "set", inputs="age")
    assert task.test_targets is not None
    assert (len(task.targets), task.test_targets.tolist()) == (4, [1])
    task = build(tmp_path / "set", inputs="age", split="extra", test_split="train")
    assert task.test_targets is not None
    assert (len(task.targets), len(task.test_targets)) == (2, 4)
    for key in ("split", "test_split"):
        with pytest.raises(ValueError, match=rf"task.{key}=dev must be a part .* test, extra"):
            build(tmp_path / "set", inputs="age", **{key: "dev"})


def test_only_the_cache_keeps_a_copy_of_a_folder(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    build(folder, inputs="age")
    assert not [*(tmp_path / "temporary").iterdir(), *tmp_path.glob("hub/*")]


def test_images(tmp_path: Path) -> None:
    images([0, 200, 100], label=[0, 1, 0], user=["b", "a", "b"]).save_to_disk(tmp_path / "set")
    task = build(tmp_path / "set", size=4, channels=1, client="user", num_clients=2)
    assert task.inputs.shape == (3, 1, 4, 4)
    assert task.inputs[:, 0, 0, 0].tolist() == [0, 200, 100]
    assert task.targets.tolist() == [1, 0, 1]
    assert [own.tolist() for own in task.partition] == [[1], [0, 2]]
    inputs, _ = task.batch(np.array([2]))
    np.testing.assert_allclose(inputs, torch.zeros(1, 1, 4, 4), atol=1e-6)
    other = images([100], label=[1])
    other.save_to_disk(tmp_path / "device")
    device = build(tmp_path / "device", target=None, schema=task.schema.to_json())
    assert device.inputs.shape == (1, 1, 4, 4)
    assert device.targets.tolist() == [0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"target": "labl"}, r"task.target=labl must be a column .* has age, city, vector\[0\]"),
        ({"inputs": ["ages"]}, r"task.inputs=ages must be a column"),
        ({"client": "who"}, r"task.client=who must be a column"),
        ({"inputs": "age", "target": "city", "kind": "regression"}, "'Bern' in row 1"),
        ({"inputs": "age", "num_clients": 9}, "num_clients=9 must be at most 4"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    folder: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(folder, **keys)


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for place, (column, kind, message) in enumerate(
        [
            ([1.0, None], Value("float64"), "column 'x' has no value .* in row 2"),
            ([[1.0], [1.0, 2.0]], List(Value("float64")), "lists of numbers of one length"),
            ([{"a": 1}, {"a": 2}], {"a": Value("int64")}, "'x' has the type .*task.ignore"),
        ]
    ):
        kinds = Features({"x": kind, "label": KINDS["label"]})
        path = tmp_path / str(place)
        Dataset.from_dict({"x": column, "label": [0, 1]}, features=kinds).save_to_disk(path)
        with pytest.raises(ValueError, match=message):
            build(path)


def test_images_beside_other_inputs_are_refused(tmp_path: Path) -> None:
    images([0, 1], label=[0, 1], age=[1, 2]).save_to_disk(tmp_path / "set")
    with pytest.raises(ValueError, match=r"task.inputs=\['picture', 'age'\] must be one column"):
        build(tmp_path / "set", inputs=["picture", "age"])


def test_a_hub_that_cannot_be_reached_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"task.path=no/such is no folder here") as caught:
        build("no/such", subset="small")
    assert "load('no/such', 'small').save_to_disk('DIR')" in str(caught.value)


def test_a_folder_that_is_no_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"task.path=.*none must be a folder: it does not exist"):
        build(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"task.path=.*empty must be a folder that save_to_disk"):
        build(tmp_path / "empty")
