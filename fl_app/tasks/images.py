"""Tasks on public images: MNIST, Fashion-MNIST, EMNIST, CIFAR, CelebA, Tiny-ImageNet."""

from collections.abc import Sequence

from fl_app.tasks.augmentation import AUGMENTATIONS
from fl_app.tasks.image_sets import image_set
from fl_app.tasks.models import architecture
from fl_app.tasks.objective import Classification
from fl_app.tasks.options import check_options
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.scaling import make_scaling
from fl_app.tasks.sources import load
from fl_app.tasks.task import Task, chunk_of, public_task


def image_task(
    *,
    data: str,
    partition: Partitioner,
    num_clients: int,
    model: str,
    scaling: str,
    split: str | None = None,
    augment: str | None = None,
    sources: Sequence[str] = ("local", "hub"),
    root: str | None = None,
    seed: int = 0,
) -> Task:
    """Classify the images of a public data set.

    Args:
        data: a name in `fl_app.tasks.image_sets.IMAGE_SETS` without the split.
        partition: distributes the training images.
        num_clients: N >= 1.
        model: a name in `fl_app.tasks.models.MODELS`.
        scaling: ``"raw255"``, ``"unit"`` or ``"standardised"``, see `fl_app.tasks.scaling`.
        split: split of a data set that has several (EMNIST).
        augment: random change of training batches, ``"crop_flip"`` or None.
        sources: places to look for the data, in this order, see `fl_app.tasks.sources.load`.
        root: folder with local data; None = the environment variable FL_APP_DATA.
        seed: seed of the partition.

    Raises:
        ValueError: a value is out of its bounds, the data are missing or damaged, or a client gets
            none.
    """
    images = image_set(data, split)
    check_options(augment=augment)
    make_model = architecture(model, images.shape, images.num_classes)
    arrays, source = load(images.data, sources, root)
    return public_task(
        images.name,
        arrays,
        Classification(images.num_classes),
        make_model,
        partition,
        num_clients,
        seed,
        source=source,
        prepare=make_scaling(scaling, 255.0, arrays["moments"]),
        augment=None if augment is None else AUGMENTATIONS[augment],
        test_chunk=chunk_of(images.shape),
    )
