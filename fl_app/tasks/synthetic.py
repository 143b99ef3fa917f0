"""Synthetic images of any shape: a random template for each class plus noise."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_app.tasks.cache import Arrays
from fl_app.tasks.models import architecture
from fl_app.tasks.objective import Classification
from fl_app.tasks.options import check_synthetic
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.task import Task, public_task

STREAM = 0x7379_6E74_6865_7469  # keeps the data's random numbers apart from all others


def synthetic(
    *,
    partition: Partitioner,
    num_clients: int,
    seed: int = 0,
    model: str = "lenet",
    shape: Sequence[int] = (1, 28, 28),
    num_classes: int = 10,
    num_examples: int = 10_000,
    num_test: int = 1_000,
    noise: float = 1.0,
) -> Task:
    """Images ``template[class] + noise * N(0, 1)``, standard normal templates, balanced classes.

    Args:
        partition: distributes the training images.
        num_clients: N, 1 <= N <= num_examples.
        seed: seed of templates, noise and partition.
        model: a name in `fl_app.tasks.models.MODELS`.
        shape: shape of one image, (channels, height, width), each >= 1.
        num_classes: C >= 2.
        num_examples: training images of all clients together, >= num_classes.
        num_test: test images, >= num_classes.
        noise: standard deviation of the noise, >= 0; with 1 the task is easy.

    Raises:
        ValueError: a value is out of its bounds, or a client gets no data.
    """
    check_synthetic(
        shape=shape,
        num_classes=num_classes,
        num_examples=num_examples,
        num_test=num_test,
        noise=noise,
    )
    channels, height, width = shape
    rng = np.random.default_rng((seed, STREAM))
    templates = rng.standard_normal((num_classes, channels, height, width), np.float32)
    arrays: Arrays = {}
    for part, count in (("train", num_examples), ("test", num_test)):
        images, labels = _images(templates, count, noise, rng)
        arrays |= {f"{part}_inputs": images, f"{part}_targets": labels}
    make_model = architecture(model, (channels, height, width), num_classes)
    given = (Classification(num_classes), make_model, partition, num_clients, seed)
    return public_task("synthetic", arrays, *given, source="generated")


def _images(
    templates: NDArray[np.float32], count: int, noise: float, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    labels = np.arange(count, dtype=np.int64) % len(templates)
    images = rng.standard_normal((count, *templates.shape[1:]), np.float32)
    images *= np.float32(noise)
    for label, template in enumerate(templates):
        images[label :: len(templates)] += template
    return images, labels
