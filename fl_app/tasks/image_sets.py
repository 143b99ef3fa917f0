"""Public image sets: where they are, how libraries read them, and a stand-in of each shape.

torchvision reads the files that its classes leave, and checks them; `datasets` reads the hub, and a
folder with a copy of it. EMNIST's images are transposed, as in its files.
"""

import zlib
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from fl_app.core.errors import require
from fl_app.tasks.cache import Arrays
from fl_app.tasks.sources import DataSet
from fl_app.tasks.vision import torchvision

STAND_IN_TRAIN, STAND_IN_TEST = 10_000, 2_000
SMILING = "Smiling"  # CelebA's target, as in LEAF


@dataclass(frozen=True)
class ImageSet:
    """A set of images.

    Its arrays are ``train_inputs`` and ``test_inputs``, uint8 of shape ``(n, *shape)``,
    ``train_targets`` and ``test_targets``, int64 of shape ``(n,)``, ``moments`` of the training
    set, and, if the person on each image is known, ``train_owners``, int64 of shape ``(n,)``.

    Attributes:
        name: in the configuration, with its split.
        shape: shape of one image, (channels, height, width).
        num_classes: C.
        folder: see `fl_app.tasks.sources.DataSet`.
        kind: torchvision's class that reads the folder; "" = `datasets` does.
        options: of the class.
        hub: see `fl_app.tasks.sources.DataSet`.
        subset: see `fl_app.tasks.sources.DataSet`.
        columns: of the hub's images, classes and owners ("" = unknown).
        test: the hub's split for testing.
    """

    name: str
    shape: tuple[int, int, int]
    num_classes: int
    folder: str
    kind: str = ""
    hub: str = ""
    columns: tuple[str, str, str] = ("image", "label", "")
    subset: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    test: str = "test"

    @property
    def data(self) -> DataSet:
        """Its files and sources."""
        return DataSet(
            name=self.name,
            folder=self.folder,
            hub=self.hub,
            subset=self.subset,
            convert=self._converted,
            read=(self._celeba if self.kind == "CelebA" else self._read) if self.kind else None,
            fetch=self._fetch(),
            stand_in=self._stand_in,
        )

    def _fetch(self) -> str:
        if not self.kind:
            return ""
        options = "".join(f"{key}='{value}', " for key, value in self.options.items())
        parts, values = ("train=t", "True, False") if self.kind != "CelebA" else ("", "0")
        return (
            'python -c "from fl_app.tasks.vision import torchvision as v; '
            f"[v().datasets.{self.kind}('DIR', {options}{parts}, download=True) "
            f'for t in ({values},)]"'
        )

    def _arrays(self, train: tuple[Any, Any], test: tuple[Any, Any], owners: Any = None) -> Arrays:
        """The arrays of images, shape ``(n, *shape)`` or ``(n, height, width)``, and labels."""
        from fl_app.tasks.scaling import moments  # torch

        arrays: Arrays = {}
        for part, (images, labels) in (("train", train), ("test", test)):
            inputs = np.ascontiguousarray(images, np.uint8).reshape(-1, *self.shape)
            targets = np.asarray(labels, np.int64)
            if len(inputs) != len(targets) or targets.max() >= self.num_classes:
                raise ValueError(f"{len(inputs)} {part} images, {len(targets)} labels")
            arrays |= {f"{part}_inputs": inputs, f"{part}_targets": targets}
        if owners is not None:
            arrays["train_owners"] = np.asarray(owners, np.int64).reshape(-1)
        return arrays | {"moments": moments(arrays["train_inputs"])}

    def _read(self, root: Path) -> Arrays:
        """Of a class of torchvision that holds its images in memory."""
        make = getattr(torchvision().datasets, self.kind)
        sets = (make(root, train=train, **self.options) for train in (True, False))
        train, test = ((np.asarray(part.data), np.asarray(part.targets)) for part in sets)
        if self.shape[0] == 3:
            train, test = ((images.transpose(0, 3, 1, 2), t) for images, t in (train, test))
        return self._arrays(train, test)

    def _celeba(self, root: Path) -> Arrays:
        from fl_app.tasks.pictures import decode

        train, test = (torchvision().datasets.CelebA(root, split=s) for s in ("train", "test"))
        column = train.attr_names.index(SMILING)

        def pair(faces: Any) -> tuple[Any, Any]:
            files = [root / self.folder / "img_align_celeba" / name for name in faces.filename]
            named = [(str(file), file) for file in files]
            return decode(named, self.shape), faces.attr[:, column]

        return self._arrays(pair(train), pair(test), train.identity)

    def _converted(self, splits: Any) -> Arrays:
        """Of the splits of a data set of Hugging Face."""
        from fl_app.tasks.huggingface import stored_images
        from fl_app.tasks.pictures import decode

        image, label, owner = self.columns

        def pair(name: str) -> tuple[Any, Any]:
            images = decode(stored_images(splits[name], image, name), self.shape)
            return images, splits[name][label][:]

        owners = splits["train"][owner][:] if owner else None
        return self._arrays(pair("train"), pair(self.test), owners)

    def _stand_in(self) -> Arrays:
        """A random template for each class plus noise of the same size, with a hundred owners.

        Every call gives the same images. If they are larger than CIFAR's there are fewer of them,
        so that they take the same memory.
        """
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        templates = rng.integers(128, size=(self.num_classes, *self.shape), dtype=np.uint8)

        def pair(count: int) -> tuple[Any, Any]:
            labels = np.arange(count) % self.num_classes
            images = rng.integers(128, size=(count, *self.shape), dtype=np.uint8)
            for label, template in enumerate(templates):
                images[label :: self.num_classes] += template
            return images, labels

        share = min(1.0, 3 * 32 * 32 / prod(self.shape))
        train, test = pair(int(share * STAND_IN_TRAIN)), pair(int(share * STAND_IN_TEST))
        # Permuted, because otherwise every owner would have one class.
        return self._arrays(train, test, rng.permutation(len(train[1])) % 100)


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
SMILES = ("image", SMILING, "celeb_id")
_EMNIST = {"byclass": 62, "balanced": 47, "mnist": 10}  # classes by split
_ALL = (
    ImageSet("mnist", GREY, 10, "MNIST/raw", "MNIST", "ylecun/mnist"),
    ImageSet(
        *("fashion_mnist", GREY, 10, "FashionMNIST/raw", "FashionMNIST"),
        hub="zalando-datasets/fashion_mnist",
    ),
    *(
        ImageSet(f"emnist_{split}", GREY, num, "EMNIST/raw", "EMNIST", options={"split": split})
        for split, num in _EMNIST.items()
    ),
    ImageSet(
        *("cifar10", COLOUR, 10, "cifar-10-batches-py", "CIFAR10", "uoft-cs/cifar10"),
        columns=("img", "label", ""),
    ),
    ImageSet(
        *("cifar100", COLOUR, 100, "cifar-100-python", "CIFAR100", "uoft-cs/cifar100"),
        columns=("img", "fine_label", ""),
    ),
    ImageSet(
        *("celeba", (3, 84, 84), 2, "celeba", "CelebA", "flwrlabs/celeba", SMILES),
        subset="img_align+identity+attr",
        options={"split": "all"},
    ),
    ImageSet(
        *("tiny_imagenet", (3, 64, 64), 200, "tiny-imagenet-200", "", "zh-plus/tiny-imagenet"),
        test="valid",
    ),
)
IMAGE_SETS = {images.name: images for images in _ALL}


def image_set(data: str, split: str | None = None) -> ImageSet:
    """Look up an image set.

    Args:
        data: a name in `IMAGE_SETS` without the split.
        split: split of a data set that has several (EMNIST).

    Raises:
        ValueError: there is no such set.
    """
    name = data if split is None else f"{data}_{split}"
    key = "task.data" if split is None else "task.split"
    known = ", ".join(IMAGE_SETS)
    bound = f"such that {data if split is None else f'{data}_<split>'} is one of {known}"
    require(name in IMAGE_SETS, key, split or data, bound, "unknown")
    return IMAGE_SETS[name]
