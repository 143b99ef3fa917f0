"""Tasks from data sets of torch and of Hugging Face."""

import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from fl_app.tasks.objective import Classification, MultiLabel, Regression
from fl_app.tasks.task import Task

X = torch.arange(40.0).view(20, 2) / 40
Y = torch.arange(20) % 2
PIXELS = np.arange(20 * 4 * 5 * 3, dtype=np.uint8).reshape(20, 4, 5, 3)


def linear(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), num_outputs))


# -- torch ----------------------------------------------------------------------------------------


def from_datasets(train: Any, test: Any = None, **settings: Any) -> Task:
    return Task.from_datasets(train, test, **({"model": linear} | settings))


def test_pairs_of_tensors() -> None:
    task = from_datasets(TensorDataset(X, Y), TensorDataset(X[:5], Y[:5]), num_clients=4)
    assert torch.equal(task.inputs, X)
    assert torch.equal(task.targets, Y)
    assert task.test_inputs is not None
    assert torch.equal(task.test_inputs, X[:5])
    assert isinstance(from_datasets(TensorDataset(X, X)).objective, Regression)


@pytest.mark.parametrize(
    ("mode", "shape", "first"),
    [("L", (1, 4, 5), 0), ("RGB", (3, 4, 5), 1), ("RGBA", (3, 4, 5), 1)],
)
def test_images_have_their_channels_first(mode: str, shape: tuple[int, ...], first: int) -> None:
    pairs = [(Image.fromarray(PIXELS[i]).convert(mode), i % 2) for i in range(20)]
    task = from_datasets(pairs)
    assert task.inputs.shape == (20, *shape)
    assert task.inputs.dtype == torch.uint8
    if first:
        assert task.inputs[7, :, 2, 3].tolist() == PIXELS[7, 2, 3].tolist()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(X[0], 0)])


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (Stream(), "train is a Stream without len(), and must be a map-style data set: read a str"),
        (TensorDataset(X), "train[0] is a tuple and must be a pair of input and target"),
        ([(X[0], 0), (X[0, :1], 1)], "the inputs of train have different shapes, such as (1,) and"),
        ([], "x_train has the shape (0, 1): its examples hold nothing"),
    ],
)
def test_bad_data_sets_are_refused(train: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        from_datasets(train)


# -- Hugging Face ---------------------------------------------------------------------------------


def table(**changes: Any) -> Any:
    from datasets import ClassLabel, Dataset, Features, Sequence, Value

    columns: dict[str, tuple[Any, Any]] = {
        "age": (Value("int64"), list(range(20))),
        "size": (Value("float64"), [i / 4 for i in range(20)]),
        "point": (Sequence(Value("float32")), X.tolist()),
        "kind": (ClassLabel(names=["cat", "dog", "eel"]), Y.tolist()),
        "flags": (Sequence(Value("int64")), np.eye(2, dtype=int)[Y].tolist()),
        "owner": (Value("string"), [f"owner {i % 4}" for i in range(20)]),
    } | changes
    features = Features({name: feature for name, (feature, _) in columns.items()})
    return Dataset.from_dict({n: values for n, (_, values) in columns.items()}, features=features)


def from_huggingface(data: Any, inputs: Any, target: str, **settings: Any) -> Task:
    settings = {"model": linear} | settings
    return Task.from_huggingface(data, inputs=inputs, target=target, **settings)


def test_a_column_of_arrays_and_one_of_classes() -> None:
    task = from_huggingface(table(), "point", "kind", clients="owner")
    assert torch.equal(task.inputs, X)
    assert torch.equal(task.targets, Y)
    assert isinstance(task.objective, Classification)
    assert task.objective.classes == ("cat", "dog", "eel")  # although there is no eel
    assert [part.tolist() for part in task.partition] == [list(range(i, 20, 4)) for i in range(4)]
    assert not task.has_test_set


def test_columns_of_numbers_are_put_together() -> None:
    task = from_huggingface(table(), ["age", "point"], "size")
    assert task.inputs[3].tolist() == [3.0, *X[3].tolist()]
    assert isinstance(task.objective, Regression)
    assert isinstance(from_huggingface(table(), ["size"], "flags").objective, MultiLabel)


def test_splits() -> None:
    from datasets import DatasetDict

    splits = DatasetDict(train=table(), test=table().select(range(5)))
    task = from_huggingface(splits, "point", "kind", num_clients=2)
    assert task.test_targets is not None
    assert task.test_targets.tolist() == Y[:5].tolist()
    with pytest.raises(ValueError, match="data has the splits test and must have 'train'"):
        from_huggingface(DatasetDict(test=table()), "point", "kind")


def test_a_folder_of_a_partitioner_of_flwr_datasets(tmp_path: Path) -> None:
    from flwr_datasets.partitioner import NaturalIdPartitioner, VerticalEvenPartitioner

    table().train_test_split(0.2, seed=0).save_to_disk(tmp_path / "set")
    path = str(tmp_path / "set")
    task = from_huggingface(path, "size", "kind", clients=NaturalIdPartitioner("owner"))
    owners = [{int(4 * size) % 4 for size in task.inputs[own, 0]} for own in task.partition]
    assert owners == [{0}, {1}, {2}, {3}]
    assert (len(task.targets), task.test_targets is not None) == (16, True)
    assert from_huggingface(path, "size", "kind", num_clients=2).num_clients == 2
    with pytest.raises(ValueError, match="clients=VerticalEvenPartitioner distributes columns"):
        from_huggingface(path, "size", "kind", clients=VerticalEvenPartitioner(2))
    with pytest.raises(ValueError, match=r"data=./none must be a folder: it does not exist"):
        from_huggingface("./none", "size", "kind")


def test_the_partitions_of_a_federated_dataset_are_the_clients(tmp_path: Path) -> None:
    from flwr_datasets import FederatedDataset
    from flwr_datasets.partitioner import DirichletPartitioner

    table().to_parquet(tmp_path / "table.parquet")
    data = FederatedDataset(
        dataset="parquet",
        data_files=str(tmp_path / "table.parquet"),
        cache_dir=str(tmp_path),
        partitioners={"train": DirichletPartitioner(3, "kind", 1.0, 1)},
    )
    task = from_huggingface(data, "size", "kind")
    for client_id, own in enumerate(task.partition):
        assert task.inputs[own, 0].tolist() == data.load_partition(client_id)["size"][:]
    by_owner = from_huggingface(data, "size", "kind", clients="owner")
    assert (task.num_clients, by_owner.num_clients) == (3, 4)
    dealt = from_huggingface(
        table(), "size", "kind", clients=DirichletPartitioner(3, "kind", 1.0, 1)
    )
    assert sum(own.size for own in dealt.partition) == 20


def test_a_column_of_images() -> None:
    from datasets import Image as ImageFeature

    images = [Image.fromarray(pixels) for pixels in PIXELS]
    task = from_huggingface(table(image=(ImageFeature(), images)), "image", "kind")
    assert task.inputs.shape == (20, 3, 4, 5)
    assert task.inputs[7, :, 2, 3].tolist() == PIXELS[7, 2, 3].tolist()


@pytest.mark.parametrize(
    ("inputs", "target", "told"),
    [
        ("points", "kind", "there is no column 'points': there are age, size, point"),
        ("owner", "kind", "x_train has 'owner 0' where numbers are needed"),
        (["size", "owner"], "kind", "x_train has 'owner 0' where numbers are needed"),
        ("ragged", "kind", "the values of the column 'ragged' have different shapes, such as (1,)"),
        ("holes", "kind", "x_train[1] is nan and must be a finite float32"),
        ("size", "unknown", "the column 'unknown' has no class in row 2"),
    ],
)
def test_bad_columns_are_refused(inputs: Any, target: str, told: str) -> None:
    from datasets import ClassLabel, Sequence, Value

    data = table(
        ragged=(Sequence(Value("float32")), [[1.0], [1.0, 2.0]] * 10),
        holes=(Value("float32"), [1.0, None] * 10),
        unknown=(ClassLabel(names=["a", "b"]), [0, -1] * 10),
    )
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        from_huggingface(data, inputs, target)


def test_a_stream_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the split 'train' is a IterableDataset and must be a"):
        from_huggingface(table().to_iterable_dataset(), "point", "kind")


def test_lists_of_classes_are_labels() -> None:
    classes = datasets.List(datasets.ClassLabel(names=["a", "b", "c"]))
    features = datasets.Features({"x": datasets.Value("float32"), "y": classes})
    rows = {"x": [1.0, 2.0, 3.0], "y": [[0, 2], [], [1]]}
    task = from_huggingface(datasets.Dataset.from_dict(rows, features), "x", "y")
    assert isinstance(task.objective, MultiLabel)
    assert task.targets.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("values", "told"), [([1, 1, 1], "only one class"), ([0, None, 1], "no class in row 2")]
)
def test_classes_that_are_one_or_missing_are_refused(values: list[Any], told: str) -> None:
    classes = datasets.ClassLabel(names=["a", "b", "c"])
    features = datasets.Features({"x": datasets.Value("float32"), "y": classes})
    data = datasets.Dataset.from_dict({"x": [1.0, 2.0, 3.0], "y": values}, features)
    with pytest.raises(ValueError, match=told):
        from_huggingface(data, "x", "y")


def test_images_of_16_bits_keep_their_bright_pixels() -> None:
    values = np.array([[0, 256, 4096, 65535]], np.uint16)
    train = [(Image.fromarray(values), 0), (Image.fromarray(values[:, ::-1].copy()), 1)]
    assert from_datasets(train).inputs[0].flatten().tolist() == [0, 1, 16, 255]
