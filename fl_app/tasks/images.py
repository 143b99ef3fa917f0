"""Tasks on public images: MNIST, Fashion-MNIST, EMNIST, CIFAR, CelebA, Tiny-ImageNet.

torchvision reads the files that its classes leave, and checks them; `datasets` reads the hub, and a
folder with a copy of it. EMNIST's images are transposed, as in its files.
"""

import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from fl_app.core.errors import require
from fl_app.tasks.cache import Arrays
from fl_app.tasks.kind import Content, augmentation, scaling
from fl_app.tasks.models import chunk_of
from fl_app.tasks.sources import DataSet, PublicTask

STAND_IN_TRAIN, STAND_IN_TEST = 10_000, 2_000
SMILING = "Smiling"  # CelebA's target, as in LEAF


@dataclass(frozen=True, kw_only=True)
class ImageSet(DataSet):
    """A set of images.

    Attributes:
        shape: shape of one image, (channels, height, width).
        num_classes: C.
        kind: torchvision's class that reads the folder; "" = `datasets` does.
        split: that the class needs.
        columns: of the hub's images, classes and owners ("" = unknown).
        test: the hub's split for testing.
    """

    shape: tuple[int, int, int]
    num_classes: int
    kind: str = ""
    split: str = ""
    columns: tuple[str, str, str] = ("image", "label", "")
    test: str = "test"

    @property
    def command(self) -> str:
        if not self.kind:
            return super().command
        given = f"split='{self.split}', " if self.split else ""
        called = f"v().datasets.{self.kind}('DIR', {given}download=True)"
        return f'python -c "from fl_app.tasks.vision import torchvision as v; {called}"'


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
_EMNIST = {"byclass": 62, "balanced": 47, "mnist": 10}  # classes by split
_ALL = (
    ImageSet("mnist", "MNIST/raw", "ylecun/mnist", shape=GREY, num_classes=10, kind="MNIST"),
    ImageSet(
        *("fashion_mnist", "FashionMNIST/raw", "zalando-datasets/fashion_mnist"),
        shape=GREY,
        num_classes=10,
        kind="FashionMNIST",
    ),
    *(
        ImageSet(
            f"emnist_{each}", "EMNIST/raw", shape=GREY, num_classes=num, kind="EMNIST", split=each
        )
        for each, num in _EMNIST.items()
    ),
    ImageSet(
        *("cifar10", "cifar-10-batches-py", "uoft-cs/cifar10"),
        shape=COLOUR,
        num_classes=10,
        kind="CIFAR10",
        columns=("img", "label", ""),
    ),
    ImageSet(
        *("cifar100", "cifar-100-python", "uoft-cs/cifar100"),
        shape=COLOUR,
        num_classes=100,
        kind="CIFAR100",
        columns=("img", "fine_label", ""),
    ),
    ImageSet(
        *("celeba", "celeba", "flwrlabs/celeba", "img_align+identity+attr"),
        shape=(3, 84, 84),
        num_classes=2,
        kind="CelebA",
        split="all",
        columns=("image", SMILING, "celeb_id"),
    ),
    ImageSet(
        *("tiny_imagenet", "tiny-imagenet-200", "zh-plus/tiny-imagenet"),
        shape=(3, 64, 64),
        num_classes=200,
        test="valid",
    ),
)
IMAGE_SETS = {images.name: images for images in _ALL}


@dataclass(kw_only=True)
class Images(PublicTask):
    """Classify the images of a public data set.

    Arrays are ``train_inputs`` and ``test_inputs``, uint8 of shape ``(n, *shape)``,
    ``train_targets`` and ``test_targets``, int64 of shape ``(n,)``, ``moments`` of the training
    set, and, if the person on each image is known, ``train_owners``, int64 of shape ``(n,)``.

    Args:
        data: a name in `IMAGE_SETS` without the split.
        split: split of a data set that has several (EMNIST).
        scaling: raw255 (original values), unit ([0, 1]) or standardised (mean 0, deviation 1).
        augment: crop_flip: training images are cropped and mirrored at random.
    """

    data: str = ""
    split: str | None = None
    model: str | None = "lenet"
    scaling: str = scaling("standardised")
    augment: str | None = augmentation()

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.data if self.split is None else f"{self.data}_{self.split}"
        key, value = ("data", self.data) if self.split is None else ("split", self.split)
        pattern = self.data if self.split is None else f"{self.data}_<split>"
        bound = f"such that {pattern} is one of {', '.join(IMAGE_SETS)}"
        require(name in IMAGE_SETS, f"task.{key}", value, bound, "unknown")
        self._name = name

    @property
    def data_set(self) -> ImageSet:
        return IMAGE_SETS[self._name]

    def content(self, seed: int) -> Content:
        from fl_app.tasks.scaling import AUGMENTATIONS, make_scaling  # load torch

        images, (arrays, source) = self.data_set, self.load()
        fields = {
            "name": images.name,
            "num_classes": images.num_classes,
            "source": source,
            "prepare": make_scaling(self.scaling, 255.0, arrays["moments"]),
            "augment": AUGMENTATIONS[self.augment],
            "test_chunk": chunk_of(images.shape),
        }
        return arrays, images.shape, fields

    def read(self, root: Path) -> Arrays:
        from fl_app.tasks.vision import torchvision

        images = self.data_set
        if not images.kind:
            return super().read(root)
        if images.kind == "CelebA":
            return self._celeba(root)
        make = getattr(torchvision().datasets, images.kind)
        more = {"split": images.split} if images.split else {}
        sets = (make(root, train=train, **more) for train in (True, False))
        train, test = ((np.asarray(part.data), np.asarray(part.targets)) for part in sets)
        if images.shape[0] == 3:
            train, test = ((pixels.transpose(0, 3, 1, 2), t) for pixels, t in (train, test))
        return self._arrays(train, test)

    def _celeba(self, root: Path) -> Arrays:
        from fl_app.tasks.pictures import decode
        from fl_app.tasks.vision import torchvision

        train, test = (torchvision().datasets.CelebA(root, split=s) for s in ("train", "test"))
        column = train.attr_names.index(SMILING)

        def pair(faces: Any) -> tuple[Any, Any]:
            folder = root / self.data_set.folder / "img_align_celeba"
            named = [(str(folder / name), folder / name) for name in faces.filename]
            return decode(named, self.data_set.shape), faces.attr[:, column]

        return self._arrays(pair(train), pair(test), train.identity)

    def convert(self, splits: Any) -> Arrays:
        from fl_app.tasks.files import stored_images
        from fl_app.tasks.pictures import decode

        images = self.data_set
        image, label, owner = images.columns

        def pair(name: str) -> tuple[Any, Any]:
            pixels = decode(stored_images(splits[name], image, name), images.shape)
            return pixels, splits[name][label][:]

        owners = splits["train"][owner][:] if owner else None
        return self._arrays(pair("train"), pair(images.test), owners)

    def stand_in(self) -> Arrays:
        """A random template for each class plus noise of the same size, with a hundred owners.

        Every call gives the same images. If they are larger than CIFAR's there are fewer of them,
        so that they take the same memory.
        """
        name, shape, num_classes = self._name, self.data_set.shape, self.data_set.num_classes
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
        return self._arrays(train, test, rng.permutation(len(train[1])) % 100)

    def _arrays(self, train: tuple[Any, Any], test: tuple[Any, Any], owners: Any = None) -> Arrays:
        """The arrays of images, shape ``(n, *shape)`` or ``(n, height, width)``, and labels."""
        from fl_app.tasks.scaling import moments

        arrays: Arrays = {}
        for part, (images, labels) in (("train", train), ("test", test)):
            inputs = np.ascontiguousarray(images, np.uint8).reshape(-1, *self.data_set.shape)
            targets = np.asarray(labels, np.int64)
            if len(inputs) != len(targets) or targets.max() >= self.data_set.num_classes:
                raise ValueError(f"{len(inputs)} {part} images, {len(targets)} labels")
            arrays |= {f"{part}_inputs": inputs, f"{part}_targets": targets}
        if owners is not None:
            arrays["train_owners"] = np.asarray(owners, np.int64).reshape(-1)
        return arrays | {"moments": moments(arrays["train_inputs"])}
