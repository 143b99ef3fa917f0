"""Tasks on images: digits, MNIST, Fashion-MNIST, EMNIST, CIFAR, CelebA, Tiny-ImageNet.

Digits come with the package. `datasets` downloads and reads Tiny-ImageNet; torchvision downloads,
checks and reads all others. EMNIST's images are transposed, as in its files.
"""

import gzip
import json
import zlib
from base64 import b64decode
from dataclasses import dataclass
from importlib import resources
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fl_app.core.errors import require
from fl_app.core.hyper import bounded, one_of
from fl_app.tasks.cache import Arrays
from fl_app.tasks.files import loaded, stored_images
from fl_app.tasks.kind import TaskKind
from fl_app.tasks.public import DataSet

if TYPE_CHECKING:
    from fl_app.tasks.task import Task

RANDOM_BYTES = 1 << 25  # of made-up images, if they are large
SCALINGS = ("raw255", "unit", "standardised")  # of `fl_app.tasks.scaling.make_scaling`
NUM_DIGITS = 1437  # for training; the others are for testing
SMILING = "Smiling"  # CelebA's target, as in LEAF

# Images and classes for training, the same for testing, and owners.
Split: TypeAlias = tuple[tuple[Any, Any], tuple[Any, Any], Any]


@dataclass(frozen=True)
class ImageSet(DataSet):
    """A set of images that torchvision knows.

    Attributes:
        kind: name of torchvision's class.
        shape: shape of one image, (channels, height, width).
        num_classes: C.
        split: argument of the class; "" = it has none.
    """

    kind: str = ""
    shape: tuple[int, int, int] = (1, 28, 28)
    num_classes: int = 10
    split: str = ""

    def fetch(self, root: Path) -> None:
        self.make(root, download=True)

    def make(self, root: Path, **settings: Any) -> Any:
        """An object of torchvision's class."""
        from fl_app.tasks.vision import torchvision

        split = {"split": self.split} if self.split else {}
        return getattr(torchvision().datasets, self.kind)(root, **split | settings)

    def read(self, root: Path) -> Split:
        """Training set, test set and owners of the training examples, if they are known."""
        sets = (self.make(root, train=train) for train in (True, False))
        train, test = ((np.asarray(part.data), np.asarray(part.targets)) for part in sets)
        if self.shape[0] == 3:
            train, test = ((pixels.transpose(0, 3, 1, 2), t) for pixels, t in (train, test))
        return train, test, None

    def random(self, rng: np.random.Generator) -> Arrays:
        """Arrays of made-up images, classes and owners."""

        def pair(count: int) -> tuple[Any, Any]:
            images = rng.integers(256, size=(count, *self.shape), dtype=np.uint8)
            return images, np.arange(count) % self.num_classes

        number = min(10_000, RANDOM_BYTES // prod(self.shape))
        return self.arrays(pair(number), pair(number // 5), rng.integers(100, size=number))

    def arrays(self, train: tuple[Any, Any], test: tuple[Any, Any], owners: Any) -> Arrays:
        """The arrays of images, shape ``(n, *shape)`` or ``(n, height, width)``, and labels.

        These are ``inputs`` and ``test_inputs``, uint8 of shape ``(n, *shape)``, ``targets`` and
        ``test_targets``, int64 of shape ``(n,)``, ``moments`` of the training set, and, if the
        person on each image is known, ``owners``, int64 of shape ``(n,)``.
        """
        from fl_app.tasks.scaling import moments_of

        arrays: Arrays = {}
        for part, (images, labels) in (("", train), ("test_", test)):
            inputs = np.ascontiguousarray(images, np.uint8).reshape(-1, *self.shape)
            targets = np.asarray(labels, np.int64)
            if len(inputs) != len(targets) or targets.max() >= self.num_classes:
                raise ValueError(f"{len(inputs)} {part}images, {len(targets)} labels")
            arrays |= {f"{part}inputs": inputs, f"{part}targets": targets}
        if owners is not None:
            arrays["owners"] = np.asarray(owners, np.int64).reshape(-1)
        return arrays | {"moments": np.array(moments_of(arrays["inputs"]))}


class Mnist(ImageSet):
    """Digits, with their writers if QMNIST's labels exist (Yadav and Bottou 2019)."""

    def read(self, root: Path) -> Split:
        train, test, owners = super().read(root)
        for file in filter(Path.is_file, (root / name for name in self.beside)):
            # Rows follow MNIST's training set: the class, the part of NIST, the writer, ...
            rows = np.frombuffer(gzip.decompress(file.read_bytes()), ">i4", offset=12)
            labels, _, owners = rows.reshape(-1, 8).T[:3]
            if not np.array_equal(labels, train[1]):
                raise ValueError(f"the labels in {file} are not those of MNIST")
        return train, test, owners


class CelebA(ImageSet):
    """Faces, the persons who own them, and whether they smile."""

    def read(self, root: Path) -> Split:
        from fl_app.tasks.pictures import decode  # loads PIL

        train, test = (self.make(root, split=split) for split in ("train", "test"))
        column = train.attr_names.index(SMILING)

        def pair(faces: Any) -> tuple[Any, Any]:
            folder = root / self.folder / "img_align_celeba"
            files = [(str(folder / name), folder / name) for name in faces.filename]
            return decode(files, self.shape), faces.attr[:, column]

        return pair(train), pair(test), train.identity


class HubImages(ImageSet):
    """A set of images on the hub."""

    fetch = DataSet.fetch

    def read(self, root: Path) -> Split:
        from fl_app.tasks.pictures import decode  # loads PIL

        def pair(name: str) -> tuple[Any, Any]:
            images = decode(stored_images(parts[name], "image", name), self.shape)
            return images, parts[name]["label"][:]

        with loaded(str(root / self.folder), None, self.name) as parts:
            return pair("train"), pair("valid"), None


COLOUR, TINY, FACE = (3, 32, 32), (3, 64, 64), (3, 84, 84)
_EMNIST = {"byclass": 62, "balanced": 47, "mnist": 10}  # classes by split
_WRITERS = tuple(
    f"{folder}/qmnist-train-labels-idx2-int.gz" for folder in ("QMNIST/raw", "qmnist-labels")
)
_TINY_FOLDER, _TINY_HUB = "tiny-imagenet-200", "zh-plus/tiny-imagenet"
_ALL = (
    Mnist("mnist", "MNIST/raw", beside=_WRITERS, kind="MNIST"),
    ImageSet("fashion_mnist", "FashionMNIST/raw", kind="FashionMNIST"),
    *(
        ImageSet(f"emnist_{split}", "EMNIST/raw", kind="EMNIST", num_classes=num, split=split)
        for split, num in _EMNIST.items()
    ),
    ImageSet("cifar10", "cifar-10-batches-py", kind="CIFAR10", shape=COLOUR),
    ImageSet("cifar100", "cifar-100-python", kind="CIFAR100", shape=COLOUR, num_classes=100),
    CelebA("celeba", "celeba", kind="CelebA", shape=FACE, num_classes=2, split="all"),
    HubImages("tiny_imagenet", _TINY_FOLDER, _TINY_HUB, shape=TINY, num_classes=200),
)
IMAGE_SETS = {images.name: images for images in _ALL}


@dataclass(kw_only=True)
class Images(TaskKind):
    """Classify the images of a public data set.

    Args:
        data: a name in `IMAGE_SETS` without the split.
        split: split of a data set that has several (EMNIST).
        scaling: raw255 (original values), unit ([0, 1]) or standardised (mean 0, deviation 1).
        made_up: random data of the same shapes, to try a run without the data.
    """

    data: str = ""
    split: str | None = None
    model: str | None = "lenet"
    scaling: str = bounded("standardised", one_of(*SCALINGS), "unknown")
    made_up: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.data if self.split is None else f"{self.data}_{self.split}"
        key, value = ("data", self.data) if self.split is None else ("split", self.split)
        bound = f"a data set, with its split one of {', '.join(IMAGE_SETS)}"
        require(name in IMAGE_SETS, f"task.{key}", value, bound, "unknown")
        self._set = IMAGE_SETS[name]

    def __call__(self, *, seed: int = 0) -> "Task":
        from fl_app.tasks.scaling import make_scaling  # loads torch

        images = self._set
        random = images.random if self.made_up else None
        arrays = images.load(lambda root: images.arrays(*images.read(root)), random)
        prepare = make_scaling(self.scaling, arrays.pop("moments"))
        shape, classes = images.shape, images.num_classes
        return self.made_of(arrays, shape, classes, name=images.name, prepare=prepare)


@dataclass(kw_only=True)
class Digits(TaskKind):
    """1,437 training and 360 test images of digits in [0, 1], 1x8x8, ten classes, stratified."""

    model: str | None = "mlp"

    def __call__(self, *, seed: int = 0) -> "Task":
        # The file states its source.
        file = resources.files("fl_app.tasks") / "tables" / "digits.json"
        table = json.loads(file.read_text(encoding="utf-8"))
        pixels = np.frombuffer(zlib.decompress(b64decode(table["images"])), np.uint8)
        # So few images are scaled once, in advance, which saves a tenth of every step.
        inputs = pixels.reshape(-1, 1, 8, 8) / np.float32(16)
        targets = np.array([*table["labels"]], np.int64)
        arrays = {
            "inputs": inputs[:NUM_DIGITS],
            "targets": targets[:NUM_DIGITS],
            "test_inputs": inputs[NUM_DIGITS:],
            "test_targets": targets[NUM_DIGITS:],
        }
        return self.made_of(arrays, (1, 8, 8), 10, name="digits")
