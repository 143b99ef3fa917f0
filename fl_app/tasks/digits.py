"""Handwritten digits: 1,797 images of 8x8 pixels, which come with the package; no download."""

import json
import zlib
from base64 import b64decode
from importlib import resources
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_app.tasks.models import architecture
from fl_app.tasks.objective import Classification
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.scaling import make_scaling, moments
from fl_app.tasks.task import Task, public_task

# The README.md of this folder says where they come from.
TABLES = resources.files("fl_app.tasks") / "tables"


def digits(
    *,
    partition: Partitioner,
    num_clients: int,
    seed: int = 0,
    model: str = "mlp",
    scaling: str = "unit",
) -> Task:
    """1,437 training and 360 test images, 1x8x8, ten classes, stratified.

    Args:
        partition: distributes the training images.
        num_clients: N, 1 <= N <= 1,437.
        seed: seed of the partition.
        model: ``"mlp"``, ``"cnn"`` or ``"logistic"``.
        scaling: see `fl_app.tasks.scaling.make_scaling`; original values are 0 to 16.

    Raises:
        ValueError: a value is out of its bounds, or a client gets no data.
    """
    images, labels = _read()
    split = _table("digits_split.json")
    train, test = np.array(split["train"]), np.array(split["test"])
    # So few images are scaled once, in advance, which saves a tenth of every step.
    scale = make_scaling(scaling, 16.0, moments(images[train]))
    arrays = {}
    for part, rows in (("train", train), ("test", test)):
        arrays[f"{part}_inputs"] = scale(torch.from_numpy(images[rows]))
        arrays[f"{part}_targets"] = torch.from_numpy(labels[rows])
    given = (Classification(10), architecture(model, (1, 8, 8), 10), partition, num_clients, seed)
    return public_task("digits", arrays, *given)


def _read() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images and labels."""
    table = _table("digits.json")
    pixels = np.frombuffer(zlib.decompress(b64decode(table["images"])), np.uint8)
    return pixels.reshape(-1, 1, 8, 8), np.array([int(label) for label in table["labels"]])


def _table(name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((TABLES / name).read_text(encoding="utf-8"))
    return table
