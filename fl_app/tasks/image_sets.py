"""Public image sets: their files, how to read them, and a stand-in of each shape.

Local files are laid out as torchvision's classes leave them. MNIST's writers come from QMNIST's
labels, if those exist. EMNIST's images are transposed, as in its files.
"""

import gzip
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require
from fl_app.tasks.cache import Arrays
from fl_app.tasks.moments import moments
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


# -- local files -----------------------------------------------------------------------------------


def read_idx(path: Path, ndim: int) -> NDArray[np.uint8]:
    """The array of bytes with `ndim` dimensions in a file of MNIST's format."""
    with reading(path, f"an IDX file of bytes in {ndim} dimension{'s' * (ndim > 1)}"):
        data = path.read_bytes()
        if data[:4] != bytes([0, 0, 8, ndim]):
            raise ValueError(
                f"it begins with {data[:4].hex() or 'nothing'} instead of 000008{ndim:02x}"
            )
        shape = np.frombuffer(data, ">u4", ndim, offset=4).astype(int)
        values = np.frombuffer(data, np.uint8, offset=4 + 4 * ndim)
        if values.size != shape.prod():
            raise ValueError(f"it has {values.size} bytes for a shape of {tuple(shape.tolist())}")
        return values.reshape(shape)


def _read_grey(folder: str, prefixes: tuple[str, str], num_classes: int, root: Path) -> Arrays:
    pairs = []
    for prefix in prefixes:
        images, labels = (
            root / folder / "raw" / f"{prefix}-{what}-ubyte"
            for what in ("images-idx3", "labels-idx1")
        )
        pairs.append((read_idx(images, 3), read_idx(labels, 1)))
        with reading(labels, f"labels from 0 to {num_classes - 1}, one of each image"):
            _check_labels(*pairs[-1], num_classes)
    owners = None
    if folder == "MNIST" and (root / QMNIST_LABELS).exists():
        with reading(root / QMNIST_LABELS, "QMNIST's rows of 8 integers, compressed by gzip"):
            rows = np.frombuffer(gzip.decompress((root / QMNIST_LABELS).read_bytes()), ">i4")
            rows = rows[3:].reshape(-1, 8)
            if not np.array_equal(rows[:, 0], pairs[0][1]):
                raise ValueError("its labels are not MNIST's")
        owners = rows[:, 2]
    train, test = pairs
    return arrays_of((1, 28, 28), num_classes, train, test, owners)


def _check_labels(images: NDArray[Any], labels: NDArray[Any], num_classes: int) -> None:
    if len(images) != len(labels) or len(images) == 0:
        raise ValueError(f"there are {len(images)} images and {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"they are from {labels.min()} to {labels.max()}")


def _read_cifar(kind: str, num_classes: int, root: Path) -> Arrays:
    make = getattr(torchvision().datasets, kind)
    files = [*make.train_list, *make.test_list, (make.meta["filename"], make.meta["md5"])]
    _check_md5((root / make.base_folder / name, md5) for name, md5 in files)
    sets = [make(root, train=train, download=False) for train in (True, False)]
    train, test = ((np.asarray(s.data).transpose(0, 3, 1, 2), s.targets) for s in sets)
    return arrays_of((3, 32, 32), num_classes, train, test)


def _check_md5(files: Iterable[tuple[Path, str | None]]) -> None:
    """Check each file's MD5, and name the damaged file, which torchvision would not."""
    calculate_md5 = torchvision().datasets.utils.calculate_md5
    for path, md5 in files:
        with reading(path, f"the published file, with MD5 {md5}"):
            if md5 is not None and (found := calculate_md5(path)) != md5:
                raise ValueError(f"its MD5 is {found}")


def _read_celeba(root: Path) -> Arrays:
    CelebA = torchvision().datasets.CelebA
    listed = ((root / "celeba" / name, md5) for _, md5, name in CelebA.file_list)
    _check_md5((path, md5) for path, md5 in listed if path.suffix == ".txt")
    train, test = (CelebA(root, split=split, download=False) for split in ("train", "test"))
    column = train.attr_names.index(CELEBA_TARGET)
    folder = root / "celeba" / "img_align_celeba"

    def pair(faces: Any) -> tuple[Any, Any]:
        return _decoded([folder / name for name in faces.filename], 84), faces.attr[:, column]

    return arrays_of((3, 84, 84), 2, pair(train), pair(test), train.identity)


def _read_tiny_imagenet(root: Path) -> Arrays:
    base = root / "tiny-imagenet-200"
    with reading(base / "wnids.txt", "the names of the classes' folders in train"):
        names = (base / "wnids.txt").read_text(encoding="utf-8").split()
        for name in names:
            if not (base / "train" / name).is_dir():
                raise ValueError(f"there is no folder {name!r:.40}")
    places = {name: label for label, name in enumerate(sorted(names))}
    train = [(p, places[n]) for n in names for p in sorted((base / "train" / n).rglob("*.JPEG"))]
    table = base / "val" / "val_annotations.txt"
    with reading(table, "a line with an image's name, a tab and a class of wnids.txt for each"):
        rows = [row.split("\t") for row in table.read_text(encoding="utf-8").splitlines()]
        test = [(base / "val" / "images" / row[0], places[row[1]]) for row in rows]

    def pair(images: list[tuple[Path, int]]) -> tuple[Any, Any]:
        return _decoded([path for path, _ in images], 64), [label for _, label in images]

    return arrays_of((3, 64, 64), 200, pair(train), pair(test))


def _decoded(images: Sequence[Any], side: int) -> NDArray[np.uint8]:
    """Colour images, from paths or PIL images, scaled to shape ``(n, 3, side, side)``."""
    from PIL import Image

    decoded = np.empty((len(images), 3, side, side), np.uint8)
    for place, image in enumerate(images):
        if isinstance(image, Path):
            with reading(image, "an image"):
                image = Image.open(image).convert("RGB")
        else:
            image = image.convert("RGB")
        if image.size != (side, side):
            image = image.resize((side, side), Image.Resampling.BILINEAR)
        decoded[place] = np.asarray(image).transpose(2, 0, 1)
    return decoded


# -- the hub ---------------------------------------------------------------------------------------


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

    def pair(split: Any) -> tuple[Any, Any]:
        column = split[image]
        if shape[0] == 1:
            return np.array([np.asarray(i.convert("L")) for i in column]), split[label]
        return _decoded(column, shape[1]), split[label]

    owners = None if owner is None else splits["train"][owner]
    return arrays_of(shape, num_classes, pair(splits["train"]), pair(splits[test]), owners)


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
    files: Iterable[str],
    read: Callable[[Path], Arrays],
    command: str,
    hub: tuple[str, str | None, dict[str, Any]] | None,
    optional: tuple[str, ...] = (),
) -> ImageSet:
    return ImageSet(
        shape,
        num_classes,
        DataSet(
            name=name,
            files=tuple(files),
            optional=optional,
            read=read,
            hub=None
            if hub is None
            else Hub(hub[0], partial(_from_hub, shape, num_classes, **hub[2]), hub[1]),
            stand_in=partial(_stand_in, name, shape, num_classes),
            command=command,
        ),
    )


def _fetch(kind: str, options: str = "train=t", values: str = "(True, False)") -> str:
    """A command with which torchvision downloads and unpacks its files into DIR."""
    return (
        'python -c "from fl_app.tasks.vision import torchvision as v; '
        f"[v().datasets.{kind}('DIR', {options}, download=True) for t in {values}]\""
    )


def _idx(folder: str, prefixes: tuple[str, str]) -> list[str]:
    return [
        f"{folder}/raw/{prefix}-{what}-ubyte"
        for prefix in prefixes
        for what in ("images-idx3", "labels-idx1")
    ]


IMAGE_SETS: dict[str, ImageSet] = {
    "mnist": _image_set(
        "mnist",
        (1, 28, 28),
        10,
        _idx("MNIST", ("train", "t10k")),
        partial(_read_grey, "MNIST", ("train", "t10k"), 10),
        _fetch("MNIST"),
        ("ylecun/mnist", None, {}),
        optional=(QMNIST_LABELS,),
    ),
    "fashion_mnist": _image_set(
        "fashion_mnist",
        (1, 28, 28),
        10,
        _idx("FashionMNIST", ("train", "t10k")),
        partial(_read_grey, "FashionMNIST", ("train", "t10k"), 10),
        _fetch("FashionMNIST"),
        ("zalando-datasets/fashion_mnist", None, {}),
    ),
    **{
        f"emnist_{split}": _image_set(
            f"emnist_{split}",
            (1, 28, 28),
            num_classes,
            _idx("EMNIST", (f"emnist-{split}-train", f"emnist-{split}-test")),
            partial(
                _read_grey,
                "EMNIST",
                (f"emnist-{split}-train", f"emnist-{split}-test"),
                num_classes,
            ),
            _fetch("EMNIST", f"split='{split}', train=t"),
            None,
        )
        for split, num_classes in (("byclass", 62), ("balanced", 47), ("mnist", 10))
    },
    "cifar10": _image_set(
        "cifar10",
        (3, 32, 32),
        10,
        [
            f"cifar-10-batches-py/{name}"
            for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")
        ],
        partial(_read_cifar, "CIFAR10", 10),
        _fetch("CIFAR10"),
        ("uoft-cs/cifar10", None, {"image": "img"}),
    ),
    "cifar100": _image_set(
        "cifar100",
        (3, 32, 32),
        100,
        [f"cifar-100-python/{name}" for name in ("train", "test", "meta")],
        partial(_read_cifar, "CIFAR100", 100),
        _fetch("CIFAR100"),
        ("uoft-cs/cifar100", None, {"image": "img", "label": "fine_label"}),
    ),
    "celeba": _image_set(
        "celeba",
        (3, 84, 84),
        2,
        [
            f"celeba/{name}"
            for name in (
                "img_align_celeba",
                "list_attr_celeba.txt",
                "identity_CelebA.txt",
                "list_bbox_celeba.txt",
                "list_landmarks_align_celeba.txt",
                "list_eval_partition.txt",
            )
        ],
        _read_celeba,
        _fetch("CelebA", "split='all'", "[0]"),
        (
            "flwrlabs/celeba",
            "img_align+identity+attr",
            {"label": CELEBA_TARGET, "owner": "celeb_id"},
        ),
    ),
    "tiny_imagenet": _image_set(
        "tiny_imagenet",
        (3, 64, 64),
        200,
        [
            f"tiny-imagenet-200/{name}"
            for name in ("wnids.txt", "train", "val/images", "val/val_annotations.txt")
        ],
        _read_tiny_imagenet,
        "cd DIR && curl -O http://cs231n.stanford.edu/tiny-imagenet-200.zip "
        "&& unzip -q tiny-imagenet-200.zip",
        ("zh-plus/tiny-imagenet", None, {"test": "valid"}),
    ),
}


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
