"""A task on folders of images, one for each class."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_app.tasks.cache import Arrays, cached
from fl_app.tasks.labelled_images import Images, encode_images
from fl_app.tasks.options import check_images, check_options, check_own_data
from fl_app.tasks.own_data import (
    READER,
    existing,
    file_facts,
    own_task,
    task_without_data,
)
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.pixels import image_shape, is_image
from fl_app.tasks.schema import Schema, read_schema

if TYPE_CHECKING:
    from fl_app.tasks.own_task import OwnTask

LAYOUT = "a folder for each class (DIR/class/image), or for each client (DIR/client/class/image)"


def image_folder(
    *,
    partition: Partitioner,
    num_clients: int | None,
    path: str | None = None,
    client: bool | None = True,
    test_share: float = 0.2,
    size: int | Sequence[int] = 32,
    channels: int = 3,
    scaling: str = "standardised",
    augment: str | None = None,
    model: str = "cnn",
    schema: str | Mapping[str, Any] | None = None,
    seed: int = 0,
) -> "OwnTask":
    """Classify images that lie in a folder for each class.

    The folder holds ``class/image`` or ``client/class/image``. It may hold ``train`` and ``test``
    with these instead. Images are decoded and resized once and held as bytes.

    Args:
        partition: distributes the training images, unless `client` is used.
        num_clients: N >= 1; None = all owners, or 50 where nobody owns anything.
        path: the folder; None = no data, only a schema.
        client: whether each folder of ``client/class/image`` is a client; if not, `partition`
            distributes their images.
        test_share: share of the images that is the test set if there is no folder ``test``, in [0,
            1); 0 = no test set.
        size: height and width of the model's images in pixels, or both as ``[height, width]``.
        channels: 1 (grey) or 3 (colours).
        scaling: see `fl_app.tasks.scaling.make_scaling`.
        augment: random change of training batches, ``"crop_flip"`` or None.
        model: a model's name.
        schema: states shape, classes and moments, which are else those of the training images; a
            path, or the contents of a file (`fl_app.tasks.schema`).
        seed: seed of the partition.

    Raises:
        ValueError: a value is out of its bounds, a folder has no images or lies at the wrong depth,
            an image cannot be read, or a client gets none.
    """
    check_own_data(path=path, schema=schema, test_share=test_share)
    check_images(size=size, channels=channels)
    check_options(scaling=scaling, augment=augment)
    if path is None:
        return task_without_data("image_folder", schema, model)
    known = read_schema(schema)
    shape = image_shape(size, channels)
    root = existing(path, "task.path", "folder")
    parts = {name: root / name for name in ("train", "test") if (root / name).is_dir()}
    train = _images(parts.get("train", root), known)
    test = _images(parts["test"], known) if len(parts) == 2 else None

    def read() -> Arrays:
        return encode_images(
            _unread(train, f"task.path={root}", bool(client)),
            None if test is None else _unread(test, f"task.path={root}/test", False),
            shape=shape,
            kind="classification",
            test_share=test_share,
            schema=known,
        )

    files = [
        [(*labels, *file_facts(file)) for labels, file in found] for found in (train, test or [])
    ]
    state = (READER, files, shape, test_share, bool(client), known)
    return own_task(
        f"image_folder-{root.resolve().name}",
        cached(
            f"image_folder-{root.resolve().name}",
            state,
            read,
            private=(str(root.resolve()), files),
        ),
        partition=partition,
        num_clients=num_clients,
        seed=seed,
        model=model,
        scaling=scaling,
        augment=augment,
    )


# Client ("" = unknown) and class of an image, and its file.
Labelled = list[tuple[tuple[str, str], Path]]


def _images(root: Path, schema: Schema | None) -> Labelled:
    """All images below a folder, in the order of their paths."""
    folders = _folders(root)
    deep = [folder for folder in folders if _folders(folder)]
    if not folders or len(deep) not in (0, len(folders)):
        flat = next((folder for folder in folders if folder not in deep), root)
        raise ValueError(f"task.path={root} must hold {LAYOUT}, and {flat} has no folders in it")
    found: Labelled = []
    for folder in folders:
        inner = _folders(folder) if deep else [folder]
        owner = folder.name if deep else ""
        own = [((owner, label.name), file) for label in inner for file in _files(label)]
        # A class of the schema may be missing here.
        if not own and (deep or schema is None):
            raise ValueError(
                f"task.path={root}: {folder} holds no images (.png, .jpg, ...): there would be a "
                f"{'client' if deep else 'class'} without examples; remove it or put images into it"
            )
        found += own
    if not found:
        raise ValueError(f"task.path={root} holds no images (.png, .jpg, ...): there are no data")
    return found


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")


def _files(folder: Path) -> list[Path]:
    if inner := _folders(folder):
        raise ValueError(f"task.path must hold {LAYOUT}: {inner[0]} lies one folder too deep")
    return sorted(path for path in folder.iterdir() if is_image(path))


def _unread(found: Labelled, where: str, owned: bool) -> Images:
    owners, labels = (np.array(names, object) for names in zip(*(n for n, _ in found), strict=True))
    return Images(
        files=[(str(file), file) for _, file in found],
        targets={"class": labels},
        where=where,
        owners=owners if owned and owners[0] else None,
    )
