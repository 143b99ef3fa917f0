"""Tasks without downloads: handwritten digits that come with the package, and synthetic images."""

import json
import zlib
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fl_app.core.errors import require_at_least
from fl_app.core.hyper import Bound, at_least, bounded, count
from fl_app.tasks.cache import Arrays
from fl_app.tasks.kind import TaskKind

if TYPE_CHECKING:
    from fl_app.tasks.task import Task

NUM_TRAIN = 1437  # digits for training; the others are for testing
STREAM = 0x7379_6E74_6865_7469  # keeps synthetic data's random numbers apart from all others
IMAGE_SHAPE = Bound(
    "three numbers >= 1: channels, height, width",
    lambda value: len(value) == 3 and all(isinstance(size, int) and size >= 1 for size in value),
)


@dataclass(kw_only=True)
class Digits(TaskKind):
    """1,437 training and 360 test images of digits in [0, 1], 1x8x8, ten classes, stratified."""

    model: str | None = "mlp"

    def __call__(self, *, seed: int = 0) -> "Task":
        from fl_app.tasks.objective import Classification  # loads torch

        # The file says where they are from.
        file = resources.files("fl_app.tasks") / "tables" / "digits.json"
        table = json.loads(file.read_text(encoding="utf-8"))
        pixels = np.frombuffer(zlib.decompress(b64decode(table["images"])), np.uint8)
        # So few images are scaled once, in advance, which saves a tenth of every step.
        inputs = pixels.reshape(-1, 1, 8, 8) / np.float32(16)
        targets = np.array([*table["labels"]], np.int64)
        arrays = {
            "inputs": inputs[:NUM_TRAIN],
            "targets": targets[:NUM_TRAIN],
            "test_inputs": inputs[NUM_TRAIN:],
            "test_targets": targets[NUM_TRAIN:],
        }
        return self.made_of(arrays, (1, 8, 8), Classification(10), name="digits")


@dataclass(kw_only=True)
class Synthetic(TaskKind):
    """Images ``template[class] + noise * N(0, 1)``, standard normal templates, balanced classes.

    Templates and noise follow from the run's seed.

    Args:
        shape: of one image: channels, height, width.
        num_classes: C >= 2.
        num_examples: training images of all clients together, >= num_classes.
        num_test: test images, >= num_classes.
        noise: standard deviation of the noise, >= 0; 1 is easy.
    """

    model: str | None = "lenet"
    shape: Sequence[int] = bounded((1, 28, 28), IMAGE_SHAPE, "there would be no image")
    num_classes: int = bounded(10, count(2), "there would be nothing to tell apart")
    num_examples: int = 10_000
    num_test: int = 1_000
    noise: float = bounded(1.0, at_least(0), "a deviation cannot be negative")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, told in (("num_examples", "be missing"), ("num_test", "not be tested")):
            value = getattr(self, key)
            require_at_least(f"task.{key}", value, self.num_classes, f"a class would {told}")

    def __call__(self, *, seed: int = 0) -> "Task":
        from fl_app.tasks.objective import Classification  # loads torch

        rng = np.random.default_rng((seed, STREAM))
        templates = rng.standard_normal((self.num_classes, *self.shape), np.float32)
        arrays: Arrays = {}
        for part, number in (("", self.num_examples), ("test_", self.num_test)):
            images, labels = _images(templates, number, self.noise, rng)
            arrays |= {f"{part}inputs": images, f"{part}targets": labels}
        objective = Classification(self.num_classes)
        return self.made_of(arrays, (*self.shape,), objective, name="synthetic")


def _images(
    templates: NDArray[np.float32], count: int, noise: float, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    labels = np.arange(count, dtype=np.int64) % len(templates)
    images = rng.standard_normal((count, *templates.shape[1:]), np.float32)
    images *= np.float32(noise)
    for label, template in enumerate(templates):
        images[label :: len(templates)] += template
    return images, labels
