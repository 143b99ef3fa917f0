"""Image tasks from small files of the real formats; sizes of the real ones where they are there."""

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fl_app.tasks.image_sets import IMAGE_SETS
from fl_app.tasks.images import image_task
from fl_app.tasks.partition import Iid, LabelQuantity, Natural
from fl_app.tasks.sources import Hub
from fl_app.tasks.task import Task
from fl_app.tasks.vision import torchvision

RNG = np.random.default_rng(0)


def make(data: str, **more: Any) -> Task:
    settings = {
        "partition": Iid(),
        "num_clients": 2,
        "model": "logistic",
        "scaling": "unit",
        "sources": ["local"],
        **more,
    }
    return image_task(data=data, **settings)


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_grey(folder: Path, prefixes: tuple[str, str], num_train: int = 20) -> None:
    for prefix, count in zip(prefixes, (num_train, 10), strict=True):
        images = np.arange(count * 784).reshape(count, 28, 28) % 256
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(count) % 10)


# -- formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "split", "folder", "prefixes", "num_classes"),
    [
        ("mnist", None, "MNIST", ("train", "t10k"), 10),
        ("fashion_mnist", None, "FashionMNIST", ("train", "t10k"), 10),
        ("emnist", "byclass", "EMNIST", ("emnist-byclass-train", "emnist-byclass-test"), 62),
        ("emnist", "balanced", "EMNIST", ("emnist-balanced-train", "emnist-balanced-test"), 47),
        ("emnist", "mnist", "EMNIST", ("emnist-mnist-train", "emnist-mnist-test"), 10),
    ],
)
def test_grey_images(
    data: str,
    split: str | None,
    folder: str,
    prefixes: tuple[str, str],
    num_classes: int,
    tmp_path: Path,
) -> None:
    write_grey(tmp_path / folder / "raw", prefixes)
    task = make(data, split=split, root=str(tmp_path), scaling="raw255")
    assert task.objective.num_outputs == num_classes
    assert task.source == "local"
    assert task.inputs.dtype == torch.uint8
    assert task.test_inputs.shape == (10, 1, 28, 28)
    inputs, targets = task.batch(np.array([3, 12]))
    assert inputs.dtype == torch.float32
    assert inputs[1].flatten().tolist() == [(12 * 784 + i) % 256 for i in range(784)]
    assert targets.tolist() == [3, 2]
    assert task.test(task.model()).keys() == {"accuracy", "loss", "commonest_prediction"}


def write_writers(root: Path, labels: list[int]) -> None:
    rows = np.zeros((len(labels), 8), ">i4")
    rows[:, 0], rows[:, 2] = labels, np.repeat([7, 3, 5, 9], 5)
    path = root / "QMNIST/raw/qmnist-train-labels-idx2-int.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(bytes(12) + rows.tobytes()))


def test_mnists_writers_come_from_qmnist(tmp_path: Path) -> None:
    write_grey(tmp_path / "MNIST/raw", ("train", "t10k"))
    settings = {"root": str(tmp_path), "partition": Natural(), "num_clients": 4}
    with pytest.raises(ValueError, match=r"partition=Natural\(min_size=1\) needs the owner"):
        make("mnist", **settings)
    write_writers(tmp_path, [i % 10 for i in range(20)])
    task = make("mnist", **settings)
    blocks = [list(range(start, start + 5)) for start in (5, 10, 0, 15)]  # by id: 3, 5, 7, 9
    assert [own.tolist() for own in task.partition] == blocks


@pytest.mark.parametrize(("kind", "label"), [("CIFAR10", "labels"), ("CIFAR100", "fine_labels")])
def test_cifar(kind: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = getattr(torchvision().datasets, kind)
    # The checksums are of the real files.
    for name in ("train_list", "test_list"):
        monkeypatch.setattr(cls, name, [[file, None] for file, _ in getattr(cls, name)])
    monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": None})
    folder = tmp_path / cls.base_folder
    folder.mkdir()
    rows = RNG.integers(0, 256, (4, 3072), np.uint8)
    for file, _ in (*cls.train_list, *cls.test_list):
        (folder / file).write_bytes(pickle.dumps({"data": rows, label: [3, 1, 2, 0]}))
    (folder / cls.meta["filename"]).write_bytes(pickle.dumps({cls.meta["key"]: ["a"]}))
    task = make(kind.lower(), root=str(tmp_path))
    assert len(task.inputs) == 4 * len(cls.train_list)
    assert task.test_inputs.numpy().reshape(4, 3072).tolist() == rows.tolist()
    assert task.test_targets.tolist() == [3, 1, 2, 0]


def test_celeba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CelebA = torchvision().datasets.CelebA
    monkeypatch.setattr(CelebA, "file_list", [(i, None, name) for i, _, name in CelebA.file_list])
    base = tmp_path / "celeba"
    (base / "img_align_celeba").mkdir(parents=True)
    names = [f"{i}.jpg" for i in range(6)]
    for shade, name in enumerate(names):
        colour = (50 * shade, 100, 200)
        Image.new("RGB", (178, 218), colour).save(base / "img_align_celeba" / name, quality=100)
    tables: dict[str, tuple[str, list[str]]] = {
        "list_eval_partition.txt": ("", ["0", "0", "1", "2", "0", "2"]),
        "identity_CelebA.txt": ("", ["8", "4", "4", "8", "8", "9"]),
        "list_bbox_celeba.txt": ("6\nid x\n", ["0"] * 6),
        "list_landmarks_align_celeba.txt": ("6\nx\n", ["0"] * 6),
        "list_attr_celeba.txt": (
            "6\nMale Smiling\n",
            ["1 -1", "1 1", "1 1", "1 1", "1 -1", "1 -1"],
        ),
    }
    for file, (head, values) in tables.items():
        lines = [f"{n} {v}\n" for n, v in zip(names, values, strict=True)]
        (base / file).write_text(head + "".join(lines))
    task = make("celeba", root=str(tmp_path), partition=Natural())
    assert task.inputs.shape == (3, 3, 84, 84)
    assert task.inputs[:, 0, 40, 40].tolist() == pytest.approx([0, 50, 200], abs=2)
    assert task.targets.tolist() == [0, 1, 0]
    assert task.test_targets.tolist() == [1, 0]
    assert [own.tolist() for own in task.partition] == [[1], [0, 2]]  # persons 4 and 8


def write_tiny_imagenet(root: Path) -> None:
    base = root / "tiny-imagenet-200"
    images = base / "val" / "images"
    images.mkdir(parents=True)
    (base / "wnids.txt").write_text("n2\nn1\n")
    for shade, name in ((40, "n1"), (90, "n2")):
        folder = base / "train" / name / "images"
        folder.mkdir(parents=True)
        Image.new("L", (64, 64), shade).save(folder / f"{name}_0.JPEG")  # some are grey
        Image.new("RGB", (64, 64), (shade, 0, 0)).save(images / f"val_{name}.JPEG")
    rows = [f"val_{name}.JPEG\t{name}\t0\t0\t9\t9\n" for name in ("n2", "n1")]
    (base / "val" / "val_annotations.txt").write_text("".join(rows))


def test_tiny_imagenet(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path)
    task = make("tiny_imagenet", root=str(tmp_path))
    order = task.targets.argsort()
    assert task.inputs[order, 0, 5, 5].tolist() == pytest.approx([40, 90], abs=1)
    assert task.test_targets.tolist() == [1, 0]
    assert task.test_inputs[:, 0, 5, 5].tolist() == pytest.approx([90, 40], abs=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "image", "label", "test", "size"),
    [("mnist", "image", "label", "test", 28), ("cifar100", "img", "fine_label", "test", 32)],
)
def test_the_hubs_columns_become_arrays(
    data: str,
    image: str,
    label: str,
    test: str,
    size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datasets

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    pictures = [Image.fromarray(RNG.integers(0, 256, (size, size, 3), np.uint8)) for _ in range(4)]
    folder = tmp_path / "repository"
    folder.mkdir()
    for split in ("train", test):
        features = datasets.Features({image: datasets.Image(), label: datasets.Value("int64")})
        rows = {image: pictures, label: [1, 0, 3, 2]}
        made = datasets.Dataset.from_dict(rows, features=features)
        made.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    hub = IMAGE_SETS[data].data.hub
    assert hub is not None
    monkeypatch.setitem(
        IMAGE_SETS,
        data,
        _with_hub(data, Hub(str(folder), hub.convert, hub.subset)),
    )
    task = make(data, sources=["local", "hub"])
    assert task.source == "hub"
    assert task.targets.tolist() == [1, 0, 3, 2]
    mode = "L" if data == "mnist" else "RGB"
    first = np.asarray(pictures[0].convert(mode)).reshape(size, size, -1).transpose(2, 0, 1)
    assert task.inputs[0].tolist() == first.tolist()


def _with_hub(data: str, hub: Hub) -> Any:
    from dataclasses import replace

    return replace(IMAGE_SETS[data], data=replace(IMAGE_SETS[data].data, hub=hub))


# -- stand-ins -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_stand_in_has_the_shape_and_can_be_learnt(name: str) -> None:
    task = make(name, sources=["synthetic"], scaling="standardised")
    assert task.source == "stand-in"
    assert task.inputs.shape[1:] == IMAGE_SETS[name].shape
    assert set(task.test_targets.tolist()) == set(range(task.objective.num_outputs))
    torch.manual_seed(0)
    model = task.model()
    params = list(model.parameters())
    for step in range(8):
        inputs, targets = task.batch(np.arange(100 * step, 100 * step + 100))
        gradient = torch.autograd.grad(task.loss(model(inputs), targets), params)
        with torch.no_grad():
            for p, g in zip(params, gradient, strict=True):
                p.sub_(g, alpha=0.01)
    correct = model(task.prepare(task.test_inputs[:200])).argmax(1) == task.test_targets[:200]
    assert correct.float().mean() > 0.9


# -- what is wrong ---------------------------------------------------------------------------------


def test_damaged_files_are_told_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    """torchvision finds the damage: a cut file, a label, a checksum, an image that is none."""
    grey = tmp_path / "MNIST/raw"
    write_grey(grey, ("train", "t10k"))
    path = grey / "t10k-labels-idx1-ubyte"
    whole = path.read_bytes()
    for contents in (whole[:-3], b"", whole[:8] + b"\x0c" * 10):
        path.write_bytes(contents)
        with pytest.raises(ValueError, match=r"mnist in task\.root=.* cannot be read: .*\n.*MNIST"):
            make("mnist", root=str(tmp_path))
    path.write_bytes(whole)
    write_writers(tmp_path, [0] * 20)
    with pytest.raises(ValueError, match=r"mnist in task\.root=.*\.gz .*are not MNIST's"):
        make("mnist", root=str(tmp_path))
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(ValueError, match=r"cifar10 in .* cannot be read: .*Dataset not found or c"):
        make("cifar10", root=str(tmp_path))
    write_tiny_imagenet(tmp_path)
    file = "tiny-imagenet-200/train/n1/images/n1_0.JPEG"
    (tmp_path / file).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=rf"tiny_imagenet in .*{file} must be an image"):
        make("tiny_imagenet", root=str(tmp_path))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": "mnits"}, r"task\.data=mnits must be .*one of mnist, fashion_mnist"),
        ({"data": "emnist", "split": "letters"}, r"task\.split=letters must be"),
        ({"augment": "flip"}, r"task\.augment=flip must be null or crop_flip"),
        ({"scaling": "raw"}, r"task\.scaling=raw must be"),
        ({"model": "lennet"}, r"task\.model=lennet must be"),
        ({"model_quirk": True}, r"task\.model_quirk=True must be false with task\.model=logistic"),
        ({"num_clients": 10_001}, r"num_clients=10001 must be at most 10000"),
        ({"partition": LabelQuantity(11)}, r"partition\.num_labels=11 must be at most 10"),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{"data": "mnist", "sources": ["synthetic"], **values})


# -- the real ones ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "file", "shape", "means"),
    [
        ("mnist", "MNIST/raw/train-images-idx3-ubyte", (1, 28, 28), [0.1307]),
        ("fashion_mnist", "FashionMNIST/raw/train-images-idx3-ubyte", (1, 28, 28), [0.2860]),
        ("cifar10", "cifar-10-batches-py/data_batch_1", (3, 32, 32), [0.4914, 0.4822, 0.4465]),
    ],
)
def test_real_data(
    data: str,
    file: str,
    shape: tuple[int, ...],
    means: list[float],
    real_data: Callable[..., None],
) -> None:
    real_data(file)
    task = make(data)
    num_train = 50_000 if data == "cifar10" else 60_000
    assert task.inputs.shape == (num_train, *shape)
    assert task.test_inputs.shape == (10_000, *shape)
    if data != "mnist":
        assert np.bincount(task.targets).tolist() == [num_train // 10] * 10
    # The means that everybody normalises with.
    assert task.inputs.numpy().mean((0, 2, 3)) / 255 == pytest.approx(means, abs=1e-4)


@pytest.mark.slow
def test_real_writers(real_data: Callable[..., None]) -> None:
    real_data("MNIST/raw/train-images-idx3-ubyte", "QMNIST/raw/qmnist-train-labels-idx2-int.gz")
    task = make("mnist", partition=Natural(), num_clients=539)
    sizes = [own.size for own in task.partition]
    assert (sum(sizes), min(sizes), max(sizes)) == (60_000, 19, 131)
