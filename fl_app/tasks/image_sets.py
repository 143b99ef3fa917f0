"""Public image sets: where they are, how torchvision reads them, and a stand-in of each shape.

Local files are laid out as torchvision's classes leave them. MNIST's writers come from QMNIST's
labels, if those exist. EMNIST's images are transposed, as in its files.
"""

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from fl_app.core.errors import require
from fl_app.tasks.cache import Arrays
from fl_app.tasks.scaling import moments
from fl_app.tasks.sources import DataSet, Hub, reading
from fl_app.tasks.vision import torchvision

STAND_IN_TRAIN, STAND_IN_TEST = 10_000, 2_000
QMNIST_LABELS = "QMNIST/raw/qmnist-train-labels-idx2-int.gz"
CELEBA_TARGET = "Smiling"  # as in LEAF


@dataclass(frozen=True)
class ImageSet:
    """A set of images.

    Attributes:
        shape: shape of one image, (channels, height, width).
        num_classes: C.
        data: its files and sources. Its arrays are ``train_inputs`` and ``test_inputs``, uint8 of
            shape ``(n, *shape)``, ``train_targets`` and ``test_targets``, int64 of shape ``(n,)``,
            and ``moments`` of the training set. If the writer or the person on each image is known,
            there is also ``train_owners``, int64 of shape ``(n,)``.
    """

    shape: tuple[int, int, int]
    num_classes: int
    data: DataSet


def arrays_of(
    shape: tuple[int, int, int],
    num_classes: int,
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    owners: Any = None,
) -> Arrays:
    """Checked arrays of images and labels.

    Args:
        shape: shape of one image, (channels, height, width).
        num_classes: C; labels are in [0, C).
        train: images, shape ``(n, *shape)``, or grey ``(n, height, width)``, and their labels.
        test: see `train`.
        owners: owners of the training images, shape ``(n,)``; None = unknown.

    Raises:
        ValueError: shapes, numbers or labels do not fit: a file is not what its name says.
    """
    arrays: Arrays = {}
    for part, (images, labels) in (("train", train), ("test", test)):
        inputs = np.ascontiguousarray(images, np.uint8).reshape(-1, *shape)
        targets = np.asarray(labels, np.int64).reshape(-1)
        if len(inputs) != len(targets) or len(inputs) == 0:
            raise ValueError(f"{len(inputs)} {part} images of shape {shape}, {len(targets)} labels")
        if targets.min() < 0 or targets.max() >= num_classes:
            raise ValueError(f"{part} labels from {targets.min()} to {targets.max()}")
        arrays |= {f"{part}_inputs": inputs, f"{part}_targets": targets}
    if owners is not None:
        arrays["train_owners"] = np.asarray(owners, np.int64).reshape(-1)
    return arrays | {"moments": moments(arrays["train_inputs"])}


# -- local files, and the hub ----------------------------------------------------------------------


def _read(
    kind: str, shape: tuple[int, int, int], num_classes: int, options: dict[str, str], root: Path
) -> Arrays:
    """Arrays of a set that torchvision's class `kind` holds in memory."""
    make = getattr(torchvision().datasets, kind)
    train, test = (make(root, train=train, **options) for train in (True, False))
    pairs = [(np.asarray(part.data), np.asarray(part.targets)) for part in (train, test)]
    if shape[0] == 3:
        pairs = [(images.transpose(0, 3, 1, 2), targets) for images, targets in pairs]
    owners = None
    if kind == "MNIST" and (root / QMNIST_LABELS).exists():
        with reading(root / QMNIST_LABELS, "QMNIST's rows of 8 integers, compressed by gzip"):
            rows = np.frombuffer(gzip.decompress((root / QMNIST_LABELS).read_bytes()), ">i4")
            rows = rows[3:].reshape(-1, 8)
            if not np.array_equal(rows[:, 0], pairs[0][1]):
                raise ValueError("its labels are not MNIST's")
        owners = rows[:, 2]
    return arrays_of(shape, num_classes, pairs[0], pairs[1], owners)


def _read_celeba(root: Path) -> Arrays:
    from fl_app.tasks.pictures import decode

    CelebA = torchvision().datasets.CelebA
    train, test = (CelebA(root, split=split) for split in ("train", "test"))
    column = train.attr_names.index(CELEBA_TARGET)
    shape = (3, 84, 84)

    def pair(faces: Any) -> tuple[Any, Any]:
        files = [root / "celeba" / "img_align_celeba" / name for name in faces.filename]
        return decode([(str(file), file) for file in files], shape), faces.attr[:, column]

    return arrays_of(shape, 2, pair(train), pair(test), train.identity)


def _read_tiny_imagenet(root: Path) -> Arrays:
    from fl_app.tasks.pictures import decode

    base, shape = root / "tiny-imagenet-200", (3, 64, 64)
    names = (base / "wnids.txt").read_text(encoding="utf-8").split()
    found = torchvision().datasets.ImageFolder(base / "train")
    train = sorted(found.samples, key=lambda sample: names.index(found.classes[sample[1]]))
    table = base / "val" / "val_annotations.txt"
    with reading(table, "a line with an image's name, a tab and a class of wnids.txt for each"):
        rows = [row.split("\t") for row in table.read_text(encoding="utf-8").splitlines()]
        images = base / "val" / "images"
        test = [(str(images / row[0]), found.class_to_idx[row[1]]) for row in rows]

    def pair(samples: list[tuple[str, int]]) -> tuple[Any, Any]:
        return decode([(f, Path(f)) for f, _ in samples], shape), [label for _, label in samples]

    return arrays_of(shape, 200, pair(train), pair(test))


def _from_hub(
    shape: tuple[int, int, int],
    num_classes: int,
    splits: Any,
    *,
    image: str = "image",
    label: str = "label",
    test: str = "test",
    owner: str | None = None,
) -> Arrays:
    """Arrays from the splits ``train`` and `test` of a Hugging Face data set.

    `image`, `label` and `owner` name its columns.
    """
    from fl_app.tasks.huggingface import stored_images
    from fl_app.tasks.pictures import decode

    def pair(name: str) -> tuple[Any, Any]:
        return decode(stored_images(splits[name], image, name), shape), splits[name][label][:]

    owners = None if owner is None else splits["train"][owner][:]
    return arrays_of(shape, num_classes, pair("train"), pair(test), owners)


# -- stand-ins -------------------------------------------------------------------------------------


def _stand_in(name: str, shape: tuple[int, int, int], num_classes: int) -> Arrays:
    """A random template for each class plus noise of the same size, with a hundred owners.

    Every call gives the same images. If they are larger than CIFAR's there are fewer of them, so
    that they take the same memory.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    templates = rng.integers(128, size=(num_classes, *shape), dtype=np.uint8)

    def pair(count: int) -> tuple[Any, Any]:
        labels = np.arange(count) % num_classes
        images = rng.integers(128, size=(count, *shape), dtype=np.uint8)
        for label, template in enumerate(templates):
            images[label::num_classes] += template
        return images, labels

    share = min(1.0, 3 * 32 * 32 / prod(shape))
    train, test = pair(int(share * STAND_IN_TRAIN)), pair(int(share * STAND_IN_TEST))
    # Permuted, because otherwise every owner would have one class.
    owners = rng.permutation(len(train[1])) % 100
    return arrays_of(shape, num_classes, train, test, owners)


# -- the sets --------------------------------------------------------------------------------------


def _image_set(
    name: str,
    shape: tuple[int, int, int],
    num_classes: int,
    folder: str,
    command: str,
    read: Callable[[Path], Arrays],
    hub: str | None = None,
    subset: str | None = None,
    optional: str | None = None,
    **columns: str,
) -> ImageSet:
    convert = partial(_from_hub, shape, num_classes, **columns)
    data = DataSet(
        name=name,
        folder=folder,
        read=read,
        hub=None if hub is None else Hub(hub, convert, subset),
        stand_in=partial(_stand_in, name, shape, num_classes),
        command=command,
        optional=optional,
    )
    return ImageSet(shape, num_classes, data)


def _of_torchvision(
    name: str,
    kind: str,
    num_classes: int,
    folder: str,
    hub: str | None = None,
    split: str | None = None,
    **settings: str,
) -> ImageSet:
    """A set that torchvision's class `kind` holds in memory."""
    shape = (3, 32, 32) if kind.startswith("CIFAR") else (1, 28, 28)
    options = {} if split is None else {"split": split}
    command = _fetch(kind, "".join(f"{key}='{value}', " for key, value in options.items()))
    read = partial(_read, kind, shape, num_classes, options)
    return _image_set(name, shape, num_classes, folder, command, read, hub, **settings)


def _fetch(
    kind: str, options: str = "", parts: str = "train=t", values: str = "True, False"
) -> str:
    """A command with which torchvision downloads and unpacks its files into DIR."""
    return (
        'python -c "from fl_app.tasks.vision import torchvision as v; '
        f"[v().datasets.{kind}('DIR', {options}{parts}, download=True) for t in ({values},)]\""
    )


_ALL = [
    _of_torchvision(
        "mnist", "MNIST", 10, "MNIST/raw", "ylecun/mnist", optional=str(Path(QMNIST_LABELS).parent)
    ),
    _of_torchvision(
        "fashion_mnist", "FashionMNIST", 10, "FashionMNIST/raw", "zalando-datasets/fashion_mnist"
    ),
    *(
        _of_torchvision(f"emnist_{split}", "EMNIST", num_classes, "EMNIST/raw", split=split)
        for split, num_classes in (("byclass", 62), ("balanced", 47), ("mnist", 10))
    ),
    _of_torchvision(
        "cifar10", "CIFAR10", 10, "cifar-10-batches-py", "uoft-cs/cifar10", image="img"
    ),
    _of_torchvision(
        "cifar100", "CIFAR100", 100, "cifar-100-python", "uoft-cs/cifar100", image="img",
        label="fine_label",
    ),
    _image_set(
        "celeba", (3, 84, 84), 2, "celeba", _fetch("CelebA", "split='all'", "", "0"), _read_celeba,
        "flwrlabs/celeba", "img_align+identity+attr", label=CELEBA_TARGET, owner="celeb_id",
    ),
    _image_set(
        "tiny_imagenet", (3, 64, 64), 200, "tiny-imagenet-200",
        "cd DIR && curl -O http://cs231n.stanford.edu/tiny-imagenet-200.zip "
        "&& unzip -q tiny-imagenet-200.zip",
        _read_tiny_imagenet, "zh-plus/tiny-imagenet", test="valid",
    ),
]  # fmt: skip
IMAGE_SETS = {images.data.name: images for images in _ALL}


def image_set(data: str, split: str | None = None) -> ImageSet:
    """Look up an image set.

    Args:
        data: a name in `IMAGE_SETS` without the split.
        split: split of a data set that has several (EMNIST).

    Raises:
        ValueError: there is no such set.
    """
    name = data if split is None else f"{data}_{split}"
    require(
        name in IMAGE_SETS,
        "task.data" if split is None else "task.split",
        split or data,
        f"such that {data if split is None else f'{data}_<split>'} is one of "
        f"{', '.join(IMAGE_SETS)}",
        "unknown",
    )
    return IMAGE_SETS[name]
